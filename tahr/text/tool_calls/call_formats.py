"""The table of call formats: how each family of models writes its calls, and by what its template is known."""

import re
from dataclasses import dataclass, replace

from tahr.errors import ConfigError
from tahr.text.tool_calls.delta_buffer import MakeId, call_id, nine_characters, numbered_function
from tahr.text.tool_calls.harmony import MARKS as HARMONY_MARKS
from tahr.text.tool_calls.json_calls import JsonForm
from tahr.text.tool_calls.literal_calls import GEMMA_QUOTE, GemmaForm, PythonForm
from tahr.text.tool_calls.named_calls import NamedForm
from tahr.text.tool_calls.tagged_calls import TaggedForm


@dataclass(frozen=True, slots=True)
class HarmonyForm:
    """A whole reply in messages and channels."""


Form = JsonForm | NamedForm | TaggedForm | GemmaForm | PythonForm | HarmonyForm


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One way of writing calls. What stands between an opening and a closing mark is in the given form."""

    name: str
    form: Form
    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    around: tuple[str, ...] = ()  # marks around all calls of a reply, which mean nothing by themselves
    found_by: tuple[str, ...] = ()  # all of these are in the templates of the family
    bare: bool = False  # a reply may begin with calls without any mark
    make_id: MakeId = call_id
    inner: tuple[str, ...] = ()  # further marks inside calls

    @property
    def edges(self) -> tuple[str, ...]:
        """Marks between which calls stand: none of them is part of one."""
        return (*self.opens, *self.closes, *self.around)

    @property
    def marks(self) -> tuple[str, ...]:
        """Everything that may be a special token of the model and must reach the parser."""
        return (*self.edges, *self.inner)


JSON = JsonForm()
ANY_NAME = re.compile(r"(?P<name>\S+)")
GLM = TaggedForm(
    ("\n", "<arg_key>", "</tool_call>"), "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>"
)
XML = TaggedForm((">",), "<parameter=", ">", "", "</parameter>", "</function>", lines=True)
SEED = replace(XML, lines=False)


def attributes(prefix: str, invoke: str = "invoke", parameter: str = "parameter") -> TaggedForm:
    """Tags with `name="..."`."""
    key = f'<{prefix}{parameter} name="'
    return TaggedForm(('">',), key, '">', "", f"</{prefix}{parameter}>", f"</{prefix}{invoke}>")


DSML = TaggedForm(
    ('">',),
    '<｜DSML｜parameter name="',
    '"',
    ">",
    "</｜DSML｜parameter>",
    "</｜DSML｜invoke>",
    says_text='string="true"',
)
LINES = PythonForm("", "\n", "")
LLAMA = JsonForm(takes_code=True)
DEEPSEEK_AROUND = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
STEP_BEGIN = "<｜tool_call_begin｜>function<｜tool_sep｜>"
STEP_END = "<｜tool_call_end｜>"
STEP_TOKENS = ("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", "<｜tool_call_begin｜>", "<｜tool_sep｜>")


def tags(name: str, open: str, *closes: str) -> CallFormat:
    """JSON between tags, the first of which is in the templates."""
    return CallFormat(name, JSON, (open,), closes, found_by=(open,))


LFM2 = replace(tags("lfm2", "<|tool_call_start|>", "<|tool_call_end|>"), form=PythonForm())

# The first whose texts are all in a template is the model's.
CALL_FORMATS = (
    CallFormat("harmony", HarmonyForm(), inner=HARMONY_MARKS, found_by=("<|channel|>", "<|message|>", "functions.")),
    CallFormat(
        "gemma",
        GemmaForm(),
        ("<|tool_call>",),
        ("<tool_call|>",),
        inner=(GEMMA_QUOTE,),
        found_by=("<|tool_call>call:",),
    ),
    CallFormat(
        "functiongemma",
        GemmaForm("<escape>"),
        ("<start_function_call>",),
        ("<end_function_call>",),
        inner=("<escape>",),
        found_by=("<start_function_call>",),
    ),
    CallFormat(
        "deepseek_v32",
        DSML,
        ('<｜DSML｜invoke name="',),
        ("</｜DSML｜invoke>",),
        around=(
            "<｜DSML｜function_calls>",
            "</｜DSML｜function_calls>",
            "<｜DSML｜tool_calls>",
            "</｜DSML｜tool_calls>",
        ),
        found_by=("DSML", "invoke name="),
    ),
    CallFormat(
        "deepseek_v3",
        NamedForm(("```json",), re.compile(r"(?:function)?(?:<｜tool▁sep｜>)?\s*(?P<name>\S+)")),
        ("<｜tool▁call▁begin｜>",),
        ("<｜tool▁call▁end｜>",),
        DEEPSEEK_AROUND,
        ("<｜tool▁call▁begin｜>", "```json"),
        inner=("<｜tool▁sep｜>",),
    ),
    CallFormat(
        "deepseek_v31",
        NamedForm(("<｜tool▁sep｜>",), ANY_NAME),
        ("<｜tool▁call▁begin｜>",),
        ("<｜tool▁call▁end｜>",),
        DEEPSEEK_AROUND,
        ("<｜tool▁call▁begin｜>",),
        inner=("<｜tool▁sep｜>",),
    ),
    CallFormat(
        "kimi",
        NamedForm(("<|tool_call_argument_begin|>",), re.compile(r"(?P<id>(?:functions\.)?(?P<name>\S+?)(?::\d+)?)")),
        ("<|tool_call_begin|>",),
        ("<|tool_call_end|>",),
        ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        found_by=("<|tool_calls_section_begin|>",),
        make_id=numbered_function,
        inner=("<|tool_call_argument_begin|>",),
    ),
    CallFormat(
        "mistral_args",
        NamedForm(("[ARGS]",), re.compile(r"(?P<name>[^\s\[]+)(?:\[CALL_ID\](?P<id>\w+))?")),
        ("[TOOL_CALLS]",),
        found_by=("[TOOL_CALLS]", "[ARGS]"),
        make_id=nine_characters,
        inner=("[ARGS]", "[CALL_ID]"),
    ),
    CallFormat("mistral", JSON, ("[TOOL_CALLS]",), found_by=("[TOOL_CALLS]",), make_id=nine_characters),
    CallFormat("json", JSON, bare=True, found_by=("]<]minimax[>[",)),  # nested tags, which are left as text
    CallFormat(
        "step3",
        attributes("steptml:"),
        ('<steptml:invoke name="',),
        ("</steptml:invoke>",),
        around=(STEP_BEGIN, STEP_END, *STEP_TOKENS),
        found_by=("<steptml:invoke",),
    ),
    CallFormat(
        "minimax_m2",
        attributes(""),
        ('<invoke name="',),
        ("</invoke>",),
        around=("<minimax:tool_call>", "</minimax:tool_call>"),
        found_by=("<minimax:tool_call>",),
    ),
    CallFormat(
        "hunyuan",
        TaggedForm(
            ("<tool_sep:opensource>", "<arg_key:opensource>", "</tool_call:opensource>"),
            "<arg_key:opensource>",
            "</arg_key:opensource>",
            "<arg_value:opensource>",
            "</arg_value:opensource>",
            "</tool_call:opensource>",
        ),
        ("<tool_call:opensource>",),
        ("</tool_call:opensource>",),
        around=("<tool_calls:opensource>", "</tool_calls:opensource>"),
        found_by=("':opensource'", "arg_key"),
    ),
    CallFormat("glm", GLM, ("<tool_call>",), ("</tool_call>",), found_by=("<arg_key>",)),
    CallFormat(
        "seed_oss",
        SEED,
        ("<function=",),
        ("</function>",),
        around=("<seed:tool_call>", "</seed:tool_call>"),
        found_by=("<seed:tool_call>", "<parameter="),
    ),
    CallFormat(
        "qwen3_coder",
        XML,
        ("<function=",),
        ("</function>",),
        around=("<tool_call>", "</tool_call>"),
        found_by=("<function=", "<parameter="),
    ),
    CallFormat(
        "minicpm",
        replace(attributes("", "function", "param"), cdata=True),
        ('<function name="',),
        ("</function>",),
        found_by=('<function name="', '<param name="'),
    ),
    CallFormat(
        "solar",
        NamedForm(("<|tool_call:args|>",), re.compile(r"(?:.*<\|tool_call:name\|>)?(?P<name>\S+)")),
        ("<|tool_call:begin|>",),
        ("<|tool_call:end|>",),
        ("<|tool_calls|>", "<|calls|>"),
        found_by=("<|tool_call:begin|>",),
        inner=("<|tool_call:name|>", "<|tool_call:args|>"),
    ),
    CallFormat("functionary", NamedForm((">",), ANY_NAME), ("<function=",), ("</function>",), found_by=("<function=",)),
    CallFormat(
        "internlm",
        JSON,
        ("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
        ("<|action_end|>",),
        found_by=("<|plugin|>",),
    ),
    tags("longcat", "<longcat_tool_call>", "</longcat_tool_call>"),
    tags("granite_20b", "<function_call>"),
    CallFormat("phi4_mini", JSON, ("functools[",), found_by=("<|tool|>", "<|/tool|>")),
    CallFormat("xlam", JSON, ("[TOOL_CALLS]", "<tool_call>"), ("</tool_call>",), bare=True),
    CallFormat("olmo3", LINES, ("<function_calls>",), ("</function_calls>",), found_by=("<function_calls>",)),
    CallFormat(
        "llama4_pythonic",
        PythonForm(),
        ("<|python_start|>",),
        ("<|python_end|>",),
        found_by=("<|python_start|>",),
        bare=True,
    ),
    CallFormat("pythonic", PythonForm(), bare=True),
    tags("cohere", "<|START_ACTION|>", "<|END_ACTION|>"),
    CallFormat(
        "apertus",
        JsonForm(frozenset(), frozenset()),
        ("<|tools_prefix|>",),
        ("<|tools_suffix|>",),
        found_by=("<|tools_prefix|>",),
    ),
    tags("nemotron", "<TOOLCALL>", "</TOOLCALL>"),
    LFM2,
    replace(LFM2, found_by=("<|tool_list_start|>",)),
    replace(LFM2, found_by=('"List of tools: ["', "|im_end|")),
    # Granite 3.1 writes the mark as text, without bars.
    CallFormat("granite", JSON, ("<|tool_call|>", "<tool_call>"), ("</tool_call>",), found_by=("<|tool_call|>",)),
    tags("gigachat", "<|function_call|>"),
    CallFormat(
        "gigachat3",
        JSON,
        ("function call<|role_sep|>\n",),
        around=("<|message_sep|>\n\n",),
        found_by=("'function call'", "<|role_sep|>"),
    ),
    CallFormat("llama3", LLAMA, ("<|python_tag|>",), bare=True, found_by=("<|python_tag|>",)),
    CallFormat("llama3", LLAMA, ("<|python_tag|>",), bare=True, found_by=("Environment: ipython",)),
    tags("minimax_m1", "<tool_calls>", "</tool_calls>"),
    tags("hermes", "<tool_call>", "</tool_call>"),
    CallFormat("json", JSON, bare=True),
)
BY_NAME = {call_format.name: call_format for call_format in reversed(CALL_FORMATS)}
GENERIC = BY_NAME["json"]
# Other names of the same call formats, most of them vLLM's.
OTHER_NAMES = {
    "hermes": "qwen qwen25 qwen3 granite4 ernie45",
    "qwen3_coder": "qwen3_xml qwen3coder step3p5 mimo",
    "llama3": "llama3_json llama llama4_json",
    "deepseek_v3": "deepseek_r1",
    "deepseek_v31": "deepseek",
    "kimi": "kimi_k2",
    "glm": "glm45 glm47 ling3 poolside_v1",
    "minimax_m2": "minimax",
    "harmony": "openai gpt_oss gpt-oss",
    "gemma": "gemma4",
    "json": "generic",
    "deepseek_v32": "deepseek_v4",
    "hunyuan": "hy_v3",
    "minimax_m1": "hunyuan_a13b jamba",
    "minicpm": "minicpm5",
    "cohere": "cohere_command3 cohere_command4",
    "phi4_mini": "phi4_mini_json",
    "granite_20b": "granite-20b-fc",
}
ALSO = {name: known for known, names in OTHER_NAMES.items() for name in names.split()}


def call_format_named(name: str) -> CallFormat:
    """The call format somebody asked for."""
    found = BY_NAME.get(ALSO.get(name, name))
    if found is None:
        known = ", ".join(sorted(BY_NAME))
        raise ConfigError(f"There is no tool call parser {name[:64]!r}: there are {known}.")
    return found


def call_format_of(template: str) -> CallFormat | None:
    """The call format of a model, by its template; None if the template shows none."""
    return next(
        (each for each in CALL_FORMATS if each.found_by and all(mark in template for mark in each.found_by)), None
    )
