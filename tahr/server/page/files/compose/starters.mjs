// What an empty conversation offers: prompts to begin with, which can be changed before they are sent.

import { el } from "../dom.mjs";

const STARTERS = [
  ["Explain something", "Explain how a vaccine works, as you would to a curious twelve-year-old."],
  ["Write code", "Write a Python function that finds the longest word in a text file, with a test."],
  ["Draft a text", "Draft a short, friendly e-mail that moves a meeting from Tuesday to Thursday."],
  ["Compare", "Compare trains and planes for a journey of 800 km, in a table."],
];

/** The greeting of an empty thread; `onChoose` is called with the prompt somebody takes. */
export function welcome(line, onChoose) {
  const buttons = STARTERS.map(([title, prompt]) =>
    el("button", { type: "button", class: "starter", title: prompt, onclick: () => onChoose(prompt) }, el("strong", {}, title), el("span", {}, prompt)),
  );
  return el("div", { class: "welcome" }, el("h1", {}, "What shall we talk about?"), el("p", {}, line), el("div", { class: "starters" }, ...buttons));
}
