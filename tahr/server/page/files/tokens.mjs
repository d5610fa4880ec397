// Tokens with their probabilities: coloured by how likely each was, with its alternatives where one points or steps.

import { $, el } from "./dom.mjs";
import { own } from "./own.mjs";

const CLASSES = [[0.9, "sure"], [0.5, "likely"], [0.2, "open"], [0, "rare"]];
const SPECIAL = { "\n": "⏎", "\t": "⇥", " ": "␣" };

export const probability = (logprob) => Math.min(1, Math.exp(logprob));
export const classOf = (logprob) => CLASSES.find(([least]) => probability(logprob) >= least)[1];
/** A token as it can be seen: spaces and line breaks have signs. */
export const visible = (text) => text.replace(/^ +| +$|[\n\t]/g, (found) => [...found].map((char) => own(SPECIAL, char, char)).join(""));
export const percent = (logprob) => {
  const share = 100 * probability(logprob);
  return share >= 10 ? `${share.toFixed(0)} %` : share >= 0.1 ? `${share.toFixed(1)} %` : "< 0.1 %";
};

function rows(token) {
  const others = token.top.some((each) => each.text === token.text) ? token.top : [token, ...token.top];
  return others.map((each) =>
    el("tr", { class: each.text === token.text ? "chosen" : null }, el("td", {}, visible(each.text)), el("td", {}, percent(each.logprob))),
  );
}

function show(token, span) {
  const box = $("hint");
  box.replaceChildren(el("table", {}, ...rows(token)));
  box.hidden = false;
  const at = span.getClientRects()[0] ?? span.getBoundingClientRect();
  const { width, height } = box.getBoundingClientRect();
  const below = at.bottom + 6 + height < window.innerHeight;
  box.style.left = `${Math.max(4, Math.min(at.left, window.innerWidth - width - 8))}px`;
  box.style.top = `${below ? at.bottom + 6 : Math.max(4, at.top - height - 6)}px`;
}

const hide = () => ($("hint").hidden = true);

/** A view of all tokens; one stop for the Tab key, arrows step from token to token. */
export function tokensView(tokens) {
  const spans = tokens.map((token) => el("span", { class: `token ${classOf(token.logprob)}` }, token.text));
  let at = -1;
  const mark = (i) => {
    spans[at]?.classList.remove("active");
    at = Math.max(0, Math.min(i, spans.length - 1));
    spans[at].classList.add("active");
    show(tokens[at], spans[at]);
  };
  const onkeydown = (event) => {
    const step = own({ ArrowRight: 1, ArrowLeft: -1 }, event.key);
    if (!step || !spans.length) return;
    event.preventDefault();
    mark(at + step);
  };
  const onmouseover = (event) => {
    const i = spans.indexOf(event.target);
    if (i >= 0) mark(i);
  };
  const label = "Tokens of the reply; the arrow keys go through them";
  return el("div", { class: "tokens", tabindex: "0", role: "group", "aria-label": label, onkeydown, onmouseover, onmouseleave: hide, onblur: hide }, ...spans);
}
