"""Replies as models of each family write them, and what is in them. Used by the tests of parser, grammar and server."""

import json
from dataclasses import dataclass
from typing import Any

from tahr.text.replies.thinking import KNOWN, ThinkingMarks, thinking_marks
from tahr.text.tool_calls.call_formats import call_format_named
from tahr.text.tool_calls.parser import ReplyFormat
from tahr.text.tool_calls.tools import Tool, tools_of

# A template that knows tools, thinking and its switch, as Qwen3's does.
TOOL_TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools><tool_call></tool_call>{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{{ c.id }}{% endfor %}"
    "{% if m.tool_call_id %}({{ m.tool_call_id }}){% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% if open is defined %}<think>\n{% endif %}{% endif %}"
)

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "exact": {"type": "boolean"},
                "where": {"type": "object", "properties": {"lat": {"type": "number"}}},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["city"],
        },
    },
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now", "description": "What time it is."}}
CODE: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Run code.",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}}},
    },
}
TOOLS: tuple[Tool, ...] = tools_of([WEATHER, NOW, CODE])
BY_NAME = {tool.name: tool for tool in TOOLS}
THINK = next(marks for marks in KNOWN if marks.open == "<think>" and not marks.answer)
COHERE = next(marks for marks in KNOWN if marks.cites)


@dataclass(frozen=True)
class Reply:
    """What a model wrote, and what it means."""

    call_format: str
    raw: str
    calls: tuple[tuple[str, str], ...] = ()  # names and arguments, letter by letter
    text: str = ""
    reasoning: str = ""
    thinking: ThinkingMarks | None = None
    in_thinking: bool = False

    @property
    def format(self) -> ReplyFormat:
        return ReplyFormat(call_format_named(self.call_format), BY_NAME, self.thinking, self.in_thinking)


ROME = '{"city": "Rome", "days": 3}'
ODD = json.dumps({"city": 'Köln "am" Rhein\n</tool_call> {x}', "tags": ["a", "}", "]"]}, ensure_ascii=False)
WX = "get_weather"


def hermes(arguments: str, name: str = WX) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def coder(**values: str) -> str:
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={WX}>\n{inside}</function>\n</tool_call>"


def glm(**values: str) -> str:
    inside = "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in values.items())
    return f"<tool_call>{WX}\n{inside}</tool_call>"


def invoke(prefix: str, **values: str) -> str:
    inside = "".join(f'<{prefix}parameter name="{k}">{v}</{prefix}parameter>\n' for k, v in values.items())
    return f'<{prefix}invoke name="{WX}">\n{inside}</{prefix}invoke>\n'


NOW_CALL = hermes("{}", "now")
DEEP = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n" + ROME + "\n```<｜tool▁call▁end｜>"
DEEP31 = f"<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{ODD}<｜tool▁call▁end｜>"
STEP = "<｜tool_call_begin｜>function<｜tool_sep｜>{}<｜tool_call_end｜>"
KIMI = "<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
DSML = (
    '<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">12</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
)
HUNYUAN = """<tool_calls:opensource>
<tool_call:opensource>get_weather<tool_sep:opensource>
<arg_key:opensource>city</arg_key:opensource>
<arg_value:opensource>12</arg_value:opensource>
<arg_key:opensource>days</arg_key:opensource>
<arg_value:opensource>3</arg_value:opensource>
</tool_call:opensource>
</tool_calls:opensource>"""
TYPED = {"city": 'Köln <b>\n"x" 12', "days": "3", "exact": "True", "tags": '["a", "b"]', "where": '{"lat": 1.5}'}
TYPED_JSON = '{"city": "Köln <b>\\n\\"x\\" 12", "days": 3, "exact": true, "tags": ["a", "b"], "where": {"lat": 1.5}}'

REPLIES = (
    Reply("hermes", hermes(ROME), ((WX, ROME),)),
    Reply(
        "hermes",
        "Let me look.\n" + hermes(ODD) + "\n" + hermes("{}", "now") + "\n",
        ((WX, ODD), ("now", "{}")),
        "Let me look.",
    ),
    Reply("hermes", '<tool_call>{"arguments": ' + ROME + ', "name": "get_weather"}</tool_call>', ((WX, ROME),)),
    Reply("hermes", '<tool_call>{"name": "now"}</tool_call>And more.', (("now", "{}"),), "And more."),
    Reply(
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": "{\\"city\\": \\"Rome\\"}"}\n</tool_call>',
        ((WX, '{"city": "Rome"}'),),
    ),
    Reply(
        "hermes",
        '<tool_call>{"type": "function", "function": {"name": "get_weather", "arguments": ' + ROME + "}}</tool_call>",
        ((WX, ROME),),
    ),
    Reply("hermes", "Hi <b>there</b> < 3 {}\n", (), "Hi <b>there</b> < 3 {}\n"),
    Reply("hermes", "<tool_call>\nnothing here\n</tool_call>after", (), "nothing here\nafter"),
    Reply("hermes", 'a<tool_call>\n{"city": "Rome"}\n</tool_call>b', (), "ab"),
    Reply("hermes", "a<tool_call>\n{'name': 'now'}\n</tool_call>b", (), "a'name': 'now'}\nb"),
    Reply("hermes", "<think>\nHm.\n</think>\n\nOk.\n" + hermes(ROME), ((WX, ROME),), "Ok.", "Hm.", THINK),
    Reply(
        "hermes",
        "Hm, <tool_call>?\n" + hermes(ROME) + "more",
        ((WX, ROME),),
        "",
        "Hm, ?\nmore",
        THINK,
        True,
    ),
    Reply("hermes", "Before.\n" + hermes(ROME) + "\nAfter.", ((WX, ROME),), "Before.\n\nAfter."),
    Reply("hermes", "A<think>b</think>C<think>d</think>E", (), "A\n\nC\n\nE", "b\n\nd", THINK),
    # The first call is broken: each of these swallowed all that follows.
    Reply("hermes", hermes(ROME[:-1]) + hermes("{}", "now") + "Ok", ((WX, ROME), ("now", "{}")), "Ok"),
    Reply("hermes", hermes('{"city": "Ro')[:-13] + "</tool_call>" + NOW_CALL, ((WX, '{"city": "Ro}'), ("now", "{}"))),
    Reply("hermes", hermes('{"city": ["a"')[:-14] + NOW_CALL, ((WX, '{"city": ["a"'), ("now", "{}"))),
    Reply("llama3", '{"name": "get_weather", "parameters": ' + ROME + "}", ((WX, ROME),)),
    Reply(
        "llama3",
        '{"name": "now", "parameters": {}}; {"name": "get_weather", "parameters": ' + ODD + "}",
        (("now", "{}"), (WX, ODD)),
    ),
    Reply(
        "llama3", '<|python_tag|>{"type": "function", "name": "get_weather", "parameters": ' + ROME + "}", ((WX, ROME),)
    ),
    Reply(
        "llama3",
        "<|python_tag|>get_weather.call(city='It\\'s (Rome)', days=3)",
        ((WX, '{"city": "It\'s (Rome)", "days": 3}'),),
    ),
    Reply("llama3", '<|python_tag|>print("hi")\nx = {1: 2}', (("python", '{"code": "print(\\"hi\\")\\nx = {1: 2}"}'),)),
    Reply("llama3", '{"name": "Bob", "parameters": {"age": 3}}', (), '{"name": "Bob", "parameters": {"age": 3}}'),
    Reply("llama3", '{"answer": [1, 2, {"name": "now"}]} ok', (), '{"answer": [1, 2, {"name": "now"}]} ok'),
    Reply("json", '[{"name": "now"}, {"name": "get_weather", "arguments": ' + ROME + "}]", (("now", "{}"), (WX, ROME))),
    Reply("json", 'Plain {"name": "now"}', (), 'Plain {"name": "now"}'),
    Reply("json", "[1, 2]", (), "[1, 2]"),
    Reply("json", '<think>so</think>\n{"name": "now", "arguments": {}}', (("now", "{}"),), "", "so", THINK),
    Reply(
        "mistral",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": '
        + ODD
        + ', "id": "abcdefghi"}, {"name": "now", "arguments": {}}]',
        ((WX, ODD), ("now", "{}")),
    ),
    Reply("mistral", "Sure.[TOOL_CALLS] [" + '{"name": "now", "arguments": {}}' + "]", (("now", "{}"),), "Sure."),
    Reply(
        "mistral_args",
        f"[TOOL_CALLS]get_weather[ARGS]{ODD}[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{{}}",
        ((WX, ODD), ("now", "{}")),
    ),
    Reply(
        "mistral_args",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Ro[TOOL_CALLS]now[ARGS]{}',
        ((WX, '{"city": "Ro'), ("now", "{}")),
    ),
    Reply(
        "mistral",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"tags": ["a"[TOOL_CALLS][{"name": "now", "arguments": {}}]',
        ((WX, '{"tags": ["a"'), ("now", "{}")),
    ),
    Reply("granite", '<|tool_call|>[{"name": "get_weather", "arguments": ' + ROME + "}]", ((WX, ROME),)),
    Reply(
        "gemma",
        '<|tool_call>call:get_weather{city:<|"|>Köln "x"\n<|"|>,days:3,exact:true,tags:[<|"|>a,b<|"|>],'
        "where:{lat:1.5}}<tool_call|>",
        ((WX, '{"city":"Köln \\"x\\"\\n","days":3,"exact":true,"tags":["a,b"],"where":{"lat":1.5}}'),),
    ),
    Reply(
        "gemma",
        "<|channel>thought\nHm\n<channel|>Well<|tool_call>call:now{}<tool_call|>",
        (("now", "{}"),),
        "Well",
        "Hm",
        KNOWN[-1],
    ),
    Reply(
        "deepseek_v3",
        "I see.<｜tool▁calls▁begin｜>" + DEEP + "\n" + DEEP + "<｜tool▁calls▁end｜>",
        ((WX, ROME), (WX, ROME)),
        "I see.",
    ),
    Reply(
        "deepseek_v31",
        "<｜tool▁calls▁begin｜>" + DEEP31.replace(ODD, ROME[:-1]) + DEEP31 + "<｜tool▁calls▁end｜>",
        ((WX, ROME[:-1]), (WX, ODD)),
    ),
    Reply("deepseek_v31", f"<｜tool▁calls▁begin｜>{DEEP31}{DEEP31}<｜tool▁calls▁end｜>", ((WX, ODD), (WX, ODD))),
    Reply(
        "deepseek_v32",
        f"Hm</think>\n\n<｜DSML｜function_calls>\n{DSML}</｜DSML｜function_calls>",
        ((WX, '{"city": "12", "days": 3}'),),
        "",
        "Hm",
        THINK,
        True,
    ),
    Reply("qwen3_coder", "Now:\n" + coder(**TYPED) + "\n" + coder(), ((WX, TYPED_JSON), (WX, "{}")), "Now:"),
    Reply("seed_oss", "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>", (("now", "{}"),)),
    Reply(  # an argument that is not closed ends where the next begins, or the call
        "qwen3_coder",
        coder(city="Rome", days="3").replace("\n</parameter>", ""),
        ((WX, '{"city": "Rome", "days": 3}'),),
    ),
    Reply(
        "qwen3_coder",
        coder(city="<parameter=x>\n</function> <b>") + coder().replace("</function>", ""),
        ((WX, '{"city": "<parameter=x>\\n</function> <b>"}'), (WX, "{}")),
    ),
    Reply("glm", glm(city="Rome", days="3").replace("</arg_value>", ""), ((WX, '{"city": "Rome\\n", "days": 3}'),)),
    Reply(
        "seed_oss",
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Rome<parameter=days>3</function>\n</seed:tool_call>",
        ((WX, '{"city": "Rome", "days": 3}'),),
    ),
    Reply(  # values stand right between the tags, and lists are Python's
        "seed_oss",
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
        "<parameter=tags>['a', \"it's\", True]</parameter>\n</function>\n</seed:tool_call>",
        ((WX, '{"city": "\\nRome\\n", "tags": ["a", "it\'s", true]}'),),
    ),
    Reply("glm", "<think>Hm</think>\n" + glm(**TYPED), ((WX, TYPED_JSON),), "", "Hm", THINK),
    Reply("hunyuan", HUNYUAN, ((WX, '{"city": "12", "days": 3}'),)),
    Reply("glm", "<tool_call>now</tool_call>", (("now", "{}"),)),
    Reply(
        "kimi",
        "Ok.<|tool_calls_section_begin|>"
        + KIMI.format(WX, 0, ODD)
        + KIMI.format("now", 1, "{}")
        + "<|tool_calls_section_end|>",
        ((WX, ODD), ("now", "{}")),
        "Ok.",
    ),
    Reply(
        "kimi",
        KIMI.format(WX, 0, ROME[:-1]) + KIMI.format("now", 1, "{}") + "<|tool_calls_section_end|>",
        ((WX, ROME[:-1]), ("now", "{}")),
    ),
    Reply(
        "deepseek_v32",
        DSML[:36]
        + '<｜DSML｜parameter name="arguments" string="false">'
        + ROME
        + "</｜DSML｜parameter>\n</｜DSML｜invoke>",
        ((WX, ROME),),
    ),
    Reply(
        "minimax_m2",
        "Hm.\n</think>\n\n<minimax:tool_call>\n" + invoke("", **TYPED) + "</minimax:tool_call>",
        ((WX, TYPED_JSON),),
        "",
        "Hm.",
        THINK,
        True,
    ),
    Reply(
        "step3",
        "Now.\n<｜tool_calls_begin｜>\n"
        + "\n".join(STEP.format(invoke("steptml:", **each)) for each in (TYPED, {}))
        + "\n<｜tool_calls_end｜>\nDone.",
        ((WX, TYPED_JSON), (WX, "{}")),
        "Now.\n\nDone.",
    ),
    Reply(  # an argument and a call without their ends
        "step3",
        STEP.format(invoke("steptml:", city="Rome", days="3")).replace("</steptml:parameter>", ""),
        ((WX, '{"city": "Rome\\n", "days": 3}'),),
    ),
    Reply(
        "minimax_m1",
        '<tool_calls>\n{"name": "get_weather", "arguments": '
        + ROME
        + '}\n{"name": "now", "arguments": {}}\n</tool_calls>',
        ((WX, ROME), ("now", "{}")),
    ),
    Reply(
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
        f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{ODD}<|call|>",
        ((WX, ODD),),
        "",
        "Hm.",
    ),
    Reply("harmony", f" to=functions.get_weather<|channel|>commentary json<|message|>{ROME}<|call|>", ((WX, ROME),)),
    Reply(
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes, 2 < 3.<|return|>",
        (),
        "Yes, 2 < 3.",
        "Hm.",
    ),
    Reply(
        "cohere",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": '
        + ROME
        + "}\n]<|END_ACTION|>",
        ((WX, ROME),),
    ),
    Reply(
        "cohere",
        "<|START_THINKING|>A <co>b</co: 0:[1]><|END_THINKING|>"
        "<|START_RESPONSE|>foo <co>bar</co: 0:[1,2],1:[3]>.<|END_RESPONSE|>",
        (),
        "foo bar.",
        "A b",
        COHERE,
    ),
    Reply(
        "harmony",
        "<|channel|>commentary<|message|>Before.<|end|><|start|>assistant<|channel|>final<|message|>After.<|return|>",
        (),
        "Before.\n\nAfter.",
    ),
    Reply(
        "apertus",
        '<|tools_prefix|>[{"get_weather": ' + ROME + '}, {"now": {}}]<|tools_suffix|>',
        ((WX, ROME), ("now", "{}")),
    ),
    Reply("nemotron", '<TOOLCALL>[{"name": "get_weather", "arguments": ' + ROME + "}]</TOOLCALL>", ((WX, ROME),)),
    Reply(
        "lfm2",
        "<|tool_call_start|>[get_weather(city='Rome', days=3, tags=['a', \"b)\"]), now()]<|tool_call_end|>Wait.",
        ((WX, '{"city": "Rome", "days": 3, "tags": ["a", "b)"]}'), ("now", "{}")),
        "Wait.",
    ),
    Reply(
        "functionary",
        f"Hm<function=get_weather>{ODD}</function><function=now>{{}}</function>",
        ((WX, ODD), ("now", "{}")),
        "Hm",
    ),
    Reply(
        "solar",
        f"<|tool_calls|><|tool_call:begin|>x1<|tool_call:name|>get_weather<|tool_call:args|>{ROME}<|tool_call:end|><|calls|>",
        ((WX, ROME),),
    ),
    Reply("granite", '<tool_call>[{"name": "get_weather", "arguments": ' + ROME + "}]", ((WX, ROME),)),
    Reply(
        "gemma",
        "<|tool_call>call:now{None:None,b:[True,null]}<tool_call|>",
        (("now", '{"None":null,"b":[true,null]}'),),
    ),
    Reply(
        "lfm2",
        "<|tool_call_start|>[get_weather(city='it's (not) \"x\", isn't?', tags=['a' , 'b']), now()]<|tool_call_end|>",
        ((WX, '{"city": "it\'s (not) \\"x\\", isn\'t?", "tags": ["a", "b"]}'), ("now", "{}")),
    ),
    Reply(
        "lfm2",
        "<|tool_call_start|>[get_weather(city='sed -n '1,2p' f('\\,'))\"', days=3)]<|tool_call_end|>",
        ((WX, '{"city": "sed -n \'1,2p\' f(\'\\\\,\'))\\"", "days": 3}'),),
    ),
    Reply(
        "lfm2",
        "<|tool_call_start|>[get_weather(city='Ro<|tool_call_end|><|tool_call_start|>[now()]<|tool_call_end|>",
        ((WX, "{"), ("now", "{}")),
    ),
    Reply(
        "gemma",
        '<|tool_call>call:get_weather{city:<|"|>Ro<tool_call|>Hi<|channel>\nHm<channel|>Ok',
        (),
        "Hi\n\nOk",
        "Hm",
        KNOWN[-1],
    ),
    Reply(
        "functiongemma",
        "Hm. <start_function_call>call:get_weather{city:<escape>Köln <b><escape>,days:3}<end_function_call>"
        "<start_function_call>call:now{}<end_function_call>",
        ((WX, '{"city":"Köln <b>","days":3}'), ("now", "{}")),
        "Hm.",
    ),
    Reply(
        "internlm",
        'Ok. <|action_start|><|plugin|>{"name": "get_weather", "parameters": ' + ODD + "}<|action_end|>\n",
        ((WX, ODD),),
        "Ok.",
    ),
    Reply(
        "longcat",
        f'<longcat_tool_call>{{"name": "get_weather", "arguments": {ROME}}}</longcat_tool_call>\n'
        '<longcat_tool_call>{"name": "now", "arguments": {}}</longcat_tool_call>',
        ((WX, ROME), ("now", "{}")),
    ),
    Reply(
        "granite_20b",
        f'<function_call> {{"name": "get_weather", "arguments": {ROME}}}\n'
        '<function_call> {"name": "now", "arguments": {}}',
        ((WX, ROME), ("now", "{}")),
    ),
    Reply(
        "phi4_mini",
        f'Ok.\nfunctools[{{"name": "get_weather", "arguments": {ODD}}}, {{"name": "now", "arguments": {{}}}}]\nMore?',
        ((WX, ODD), ("now", "{}")),
        "Ok.\n\nMore?",
    ),
    Reply("xlam", f'[{{"name": "get_weather", "arguments": {ODD}}}]', ((WX, ODD),)),
    Reply("xlam", f'Ok.[TOOL_CALLS][{{"name": "get_weather", "arguments": {ROME}}}]', ((WX, ROME),), "Ok."),
    Reply("xlam", "<think>Hm</think>" + NOW_CALL, (("now", "{}"),), "", "Hm", THINK),
    Reply(
        "olmo3",
        "Ok.<function_calls>get_weather(city='Rome', exact=true)\nnow()</function_calls>",
        ((WX, '{"city": "Rome", "exact": true}'), ("now", "{}")),
        "Ok.",
    ),
    Reply(
        "pythonic",
        """[get_weather(city='Martha\\'s "x"', days=3, where={'lat': 1.5}), now()]""",
        ((WX, '{"city": "Martha\'s \\"x\\"", "days": 3, "where": {"lat": 1.5}}'), ("now", "{}")),
    ),
    Reply("pythonic", "[1] is no call, nor is [now].", (), "[1] is no call, nor is [now]."),
    Reply("llama4_pythonic", "[now()]", (("now", "{}"),)),
    Reply("llama4_pythonic", "<|python_start|>[get_weather(city='LA')]<|python_end|>", ((WX, '{"city": "LA"}'),)),
    Reply(  # Hunyuan A13B
        "minimax_m1",
        "<think>\nHm.\n</think>\n<answer>\nOk.\n</answer>",
        (),
        "Ok.",
        "Hm.",
        thinking_marks("<answer>"),
    ),
    Reply(
        "granite",
        "Here is my thought process: Hm. Here is my response: Ok.",
        (),
        "Ok.",
        "Hm.",
        thinking_marks("Here is my thought process:"),
    ),
    Reply("gigachat", '<|function_call|>{"name": "get_weather", "arguments": ' + ROME + "}", ((WX, ROME),)),
    Reply(
        "minicpm",
        '<function name="get_weather"><param name="city">12</param><param name="days">3</param></function>',
        ((WX, '{"city": "12", "days": 3}'),),
    ),
    Reply(
        "minicpm",
        'Hm<function name="get_weather"><param name="city"><![CDATA[<b>\nRo]] & </param>me]]></param>'
        '<param name="days"><![CDATA[3]]></param></function>',
        ((WX, '{"city": "<b>\\nRo]] & </param>me", "days": 3}'),),
        "Hm",
    ),
    Reply(
        "gigachat3",
        'Hm.<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "get_weather", "arguments": ' + ODD + "}",
        ((WX, ODD),),
        "Hm.",
    ),
    Reply(
        "lfm2",
        "<|tool_call_start|>[get_weather(city='Ro\nme')]<|tool_call_end|>",
        ((WX, '{"city": "Ro\\nme"}'),),
    ),
)


# Two calls after a word, and an answer after a thought.
CALLS = "Let me look.\n" + hermes(ROME) + "\n" + hermes("{}", "now")
THOUGHT = "<think>\nHm.\n</think>\n\nYes."
