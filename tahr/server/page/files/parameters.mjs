// The parameters of a reply: a table of what each is called and means, and the form made of it.
// What is left empty is the server's or the model's own value.

import { currentKey, setKey } from "./api.mjs";
import { $, el } from "./dom.mjs";
import { settings } from "./store.mjs";

const NUMBERS = [
  ["temperature", "Temperature", "How freely tokens are drawn: 0 always takes the likeliest, above 1 it gets wild.", { min: 0, max: 100, step: 0.1 }],
  ["top_p", "Top-p", "Only the likeliest tokens that make up this share of the probability are drawn from.", { min: 0, max: 1, step: 0.05 }],
  ["top_k", "Top-k", "Only this many of the likeliest tokens are drawn from; 0 is no limit.", { min: 0, step: 1 }],
  ["min_p", "Min-p", "Tokens less likely than this part of the likeliest are dropped.", { min: 0, max: 1, step: 0.01 }],
  ["repetition_penalty", "Repetition penalty", "Above 1, tokens that have come become less likely.", { min: 0.01, max: 100, step: 0.05 }],
  ["presence_penalty", "Presence penalty", "Subtracted once from tokens the reply already has.", { min: -100, max: 100, step: 0.1 }],
  ["frequency_penalty", "Frequency penalty", "Subtracted for every time the reply already has a token.", { min: -100, max: 100, step: 0.1 }],
  ["max_tokens", "Longest reply", "In tokens; the reply is cut there.", { min: 1, step: 1 }],
  ["seed", "Seed", "The same seed gives the same reply to the same prompt.", { min: 0, step: 1 }],
  ["thinking_budget", "Thinking budget", "Most tokens of thinking, for models that think.", { min: 0, step: 1 }],
];
const THINKING = [["", "default"], ["on", "on"], ["off", "off"]];
const EXAMPLE = '[{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]';

let values = settings.read("parameters", {});

function keep(name, value) {
  if (value === "" || value === false) delete values[name];
  else values[name] = value;
  settings.write("parameters", values);
}

function field(name, label, meaning, input) {
  input.id = name;
  input.setAttribute("aria-describedby", `${name}-meaning`);
  return el("div", { class: "field" }, el("label", { for: name }, label), input, el("small", { id: `${name}-meaning` }, meaning));
}

function numberField([name, label, meaning, limits]) {
  const input = el("input", { type: "number", placeholder: "default", inputmode: "decimal", ...limits, oninput: () => keep(name, input.value) });
  input.value = values[name] ?? "";
  return field(name, label, meaning, input);
}

function textField(name, label, meaning, rows, properties = {}) {
  const input = el("textarea", { rows, ...properties, oninput: () => keep(name, input.value) });
  input.value = values[name] ?? "";
  return field(name, label, meaning, input);
}

function thinkingField() {
  const input = el("select", { onchange: () => keep("thinking", input.value) }, ...THINKING.map(([value, text]) => el("option", { value }, text)));
  input.value = values.thinking ?? "";
  return field("thinking", "Thinking", "Whether the model thinks before it replies, where it has that switch.", input);
}

function logprobsField() {
  const input = el("input", { type: "checkbox", onchange: () => keep("logprobs", input.checked) });
  input.checked = Boolean(values.logprobs);
  return field("logprobs", "Token probabilities", "Ask for them with the next reply, then point at a token to see what else it could have been.", input);
}

function keyField(onKey) {
  const input = el("input", { type: "password", autocomplete: "off", onchange: () => (setKey(input.value), onKey()) });
  input.value = currentKey();
  return field("key", "API key", "If the server asks for one. Forgotten when this tab is closed.", input);
}

function reset() {
  values = {};
  settings.write("parameters", values);
}

/** Fill the panel; `onKey` is called when the key has changed. */
export function showParameters(onKey) {
  const again = () => (reset(), showParameters(onKey));
  $("parameters").replaceChildren(
    textField("system", "System prompt", "Instructions before the conversation.", 3),
    ...NUMBERS.map(numberField),
    thinkingField(),
    logprobsField(),
    textField("tools", "Tools", "Functions the model may call, as JSON. Nothing is run: what you type next is the result.", 3, { spellcheck: "false", placeholder: EXAMPLE }),
    keyField(onKey),
    el("button", { type: "button", onclick: again }, "Back to the defaults"),
  );
}

export const systemPrompt = () => (values.system ?? "").trim();

/** The fields of a request; throws a sentence where the tools are no JSON. */
export function requestFields() {
  const made = {};
  for (const [name] of NUMBERS) if (values[name] !== undefined) made[name] = Number(values[name]);
  if (values.thinking) made.thinking = values.thinking === "on";
  if (values.logprobs) Object.assign(made, { logprobs: true, top_logprobs: 5 });
  if (values.tools?.trim()) made.tools = toolsOf(values.tools);
  return made;
}

function toolsOf(text) {
  try {
    const tools = JSON.parse(text);
    if (Array.isArray(tools)) return tools;
  } catch {
    // said below
  }
  throw new Error("Tools must be a JSON list of functions: correct them under Parameters.");
}
