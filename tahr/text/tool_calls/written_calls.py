"""Calls written in a model's own format: the text around names and arguments."""

from collections.abc import Sequence
from dataclasses import dataclass

from tahr.text.tool_calls.call_formats import CallFormat
from tahr.text.tool_calls.json_text import loaded
from tahr.text.tool_calls.literal_calls import PythonForm


@dataclass(frozen=True, slots=True)
class CallFrame:
    """Marks around names and JSON arguments. `#` stands for the number of the call."""

    call_open: str
    name_end: str
    call_close: str = ""
    separator: str = ""
    section_open: str = ""
    section_close: str = ""


@dataclass(frozen=True, slots=True)
class TagFrame:
    """Marks around the names of calls whose arguments are tags, and the space after a tag."""

    call_open: str
    name_end: str
    call_close: str = ""
    separator: str = ""
    section_open: str = ""
    section_close: str = ""
    space: str = ""  # space after an argument
    value_space: str = ""  # between the key and the value of an argument


OBJECT = ('{"name": "', '", "arguments": ')
FRAMES = {
    "hermes": CallFrame('<tool_call>\n{"name": "', OBJECT[1], "}\n</tool_call>", "\n"),
    "json": CallFrame(*OBJECT, "}", "\n"),
    "llama3": CallFrame('{"name": "', '", "parameters": ', "}", "; "),
    "mistral": CallFrame(*OBJECT, "}", ", ", "[TOOL_CALLS][", "]"),
    "mistral_args": CallFrame("[TOOL_CALLS]", "[ARGS]"),
    "granite": CallFrame(*OBJECT, "}", ", ", "<|tool_call|>[", "]"),
    "gigachat": CallFrame("<|function_call|>" + OBJECT[0], OBJECT[1], "}"),
    "gigachat3": CallFrame("function call<|role_sep|>\n" + OBJECT[0], OBJECT[1], "}", "", "<|message_sep|>\n\n"),
    "nemotron": CallFrame(*OBJECT, "}", ", ", "<TOOLCALL>[", "]</TOOLCALL>"),
    "minimax_m1": CallFrame(*OBJECT, "}", "\n", "<tool_calls>\n", "\n</tool_calls>"),
    "apertus": CallFrame('{"', '": ', "}", ", ", "<|tools_prefix|>[", "]<|tools_suffix|>"),
    "internlm": CallFrame("<|action_start|><|plugin|>" + OBJECT[0], '", "parameters": ', "}<|action_end|>"),
    "longcat": CallFrame("<longcat_tool_call>" + OBJECT[0], OBJECT[1], "}</longcat_tool_call>", "\n"),
    "granite_20b": CallFrame("<function_call> " + OBJECT[0], OBJECT[1], "}", "\n"),
    "phi4_mini": CallFrame(*OBJECT, "}", ", ", "functools[", "]"),
    "xlam": CallFrame(*OBJECT, "}", ", ", "[", "]"),
    "functionary": CallFrame("<function=", ">", "</function>"),
    "harmony": CallFrame("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "<|call|>"),
    "cohere": CallFrame(
        '    {"tool_call_id": "#", "tool_name": "', '", "parameters": ', "}", ",\n",
        "<|START_ACTION|>[\n", "\n]<|END_ACTION|>",
    ),
    "deepseek_v3": CallFrame(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>", "\n",
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": CallFrame(
        "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "",
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
    ),
    "kimi": CallFrame(
        "<|tool_call_begin|>functions.", ":#<|tool_call_argument_begin|>", "<|tool_call_end|>", "",
        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
    ),
    "solar": CallFrame(
        "<|tool_call:begin|>call_#<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>", "",
        "<|tool_calls|>", "<|calls|>",
    ),
}  # fmt: skip

TAG_FRAMES = {
    "qwen3_coder": TagFrame("<tool_call>\n<function=", ">\n", "\n</tool_call>", "\n", space="\n"),
    "seed_oss": TagFrame("<seed:tool_call>\n<function=", ">\n", "\n</seed:tool_call>", "\n", space="\n"),
    "glm": TagFrame("<tool_call>", "\n", "", "\n", space="\n", value_space="\n"),
    "minicpm": TagFrame('<function name="', '">', "", "\n"),
    "minimax_m2": TagFrame(
        '<invoke name="', '">\n', "\n", "", "<minimax:tool_call>\n", "</minimax:tool_call>", space="\n"
    ),
    "deepseek_v32": TagFrame(
        '<｜DSML｜invoke name="', '">\n', "\n", "",
        "<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>", space="\n",
    ),
    "step3": TagFrame(
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="', '">\n', "<｜tool_call_end｜>", "\n",
        "<｜tool_calls_begin｜>\n", "\n<｜tool_calls_end｜>", space="\n",
    ),
    "hunyuan": TagFrame(
        "<tool_call:opensource>", "<tool_sep:opensource>\n", "", "\n",
        "<tool_calls:opensource>\n", "\n</tool_calls:opensource>", space="\n", value_space="\n",
    ),
}  # fmt: skip


def written(call_format: CallFormat, calls: Sequence[tuple[str, str]]) -> str:
    """Calls, each a name and JSON arguments, as the model writes them; as Hermes does where that takes a template."""
    if isinstance(call_format.form, PythonForm):
        form = call_format.form
        inside = form.separator.join(map(python_call, calls))
        return "".join([*call_format.opens[:1], form.begin, inside, form.end, *call_format.closes[:1]])
    frame = FRAMES.get(call_format.name, FRAMES["hermes"])
    texts = [
        frame.call_open.replace("#", str(i)) + name + frame.name_end.replace("#", str(i)) + arguments + frame.call_close
        for i, (name, arguments) in enumerate(calls)
    ]
    return frame.section_open + frame.separator.join(texts) + frame.section_close


def python_call(call: tuple[str, str]) -> str:
    name, arguments = call
    values = loaded(arguments)
    pairs = values.items() if isinstance(values, dict) else ()
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in pairs)})"
