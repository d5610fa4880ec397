// One turn of a conversation on the screen.

import { picture } from "./compose/images.mjs";
import { siblings } from "./conversation.mjs";
import { copyButton, el, icon, iconButton } from "./dom.mjs";
import { own } from "./own.mjs";
import { MarkdownView, rawText } from "./render.mjs";
import { tokensView } from "./tokens.mjs";

const NAMES = { user: "You", assistant: "Assistant", tool: "Result" };

/** A turn that may still grow; `actions` are what its buttons do: edit, regenerate, fork, choose. */
export class TurnView {
  constructor(conversation, turn, actions) {
    Object.assign(this, { conversation, turn, actions });
    this.body = el("div", { class: "body" });
    this.foot = el("div", { class: "foot" });
    this.element = el(
      "article", { class: `turn ${turn.role}`, "aria-label": own(NAMES, turn.role, "Message") },
      el("h2", {}, turn.role === "tool" ? `Result of ${turn.name}` : turn.role === "assistant" ? turn.model || NAMES.assistant : NAMES.user),
      this.body, this.foot,
    );
    this.markdown = new MarkdownView();
    this.thinking = null;
    this.isTokens = false;
    this.show(turn);
    this.showFoot();
  }

  /** Show the parts of a turn, or of a reply in the making; one that cannot be drawn shows its text, and hides no other. */
  show(parts, isRunning = false) {
    try {
      this.draw(parts, isRunning);
    } catch (error) {
      console.warn("A message is shown as plain text:", error);
      this.body.replaceChildren(rawText(parts.content));
    }
  }

  draw(parts, isRunning) {
    if (this.isTokens) return this.body.replaceChildren(tokensView(parts.tokens));
    if (this.turn.role !== "assistant") {
      const pictures = (parts.images ?? []).map(picture);
      return this.body.replaceChildren(...pictures, el("div", { class: "plain" }, parts.content));
    }
    this.markdown.show(parts.content);
    this.body.replaceChildren(
      ...[this.thinkingView(parts, isRunning), this.waitView(parts, isRunning), this.markdown.element, ...(parts.toolCalls ?? []).filter(Boolean).map(callView)].filter(Boolean),
    );
    this.element.setAttribute("aria-busy", String(isRunning));
    return undefined;
  }

  thinkingView(parts, isRunning) {
    if (!parts.reasoning) return null;
    this.thinking ??= new Thinking();
    this.thinking.show(parts.reasoning, isRunning && !parts.content && !parts.toolCalls?.length);
    return this.thinking.element;
  }

  waitView(parts, isRunning) {
    if (!isRunning || parts.content || parts.reasoning || parts.toolCalls?.length) return null;
    const { processed, total } = parts.progress ?? {};
    if (!total) return el("div", { class: "wait", "aria-label": "waiting" }, el("i"), el("i"), el("i"));
    return el("div", { class: "prefill" }, el("progress", { value: processed, max: total }), `prefill: ${processed} of ${total} tokens`);
  }

  showFoot(isRunning = false) {
    const { turn, conversation } = this;
    const buttons = isRunning ? [] : [this.branches(siblings(conversation, turn)), ...this.buttons()];
    const facts = [turn.note, turn.statsLine].filter(Boolean).join(" · ");
    this.foot.replaceChildren(...buttons.filter(Boolean), el("span", { class: "stats" }, facts));
  }

  buttons() {
    const { turn, actions } = this;
    const isAssistant = turn.role === "assistant";
    return [
      copyButton(() => turn.content, "Copy text"),
      turn.role === "tool" ? null : iconButton("edit", isAssistant ? "Edit this reply" : "Edit and send again", () => this.edit()),
      isAssistant ? iconButton("again", "Regenerate", () => actions.regenerate(turn)) : null,
      iconButton("branch", "Continue from here in a new conversation", () => actions.fork(turn)),
      turn.tokens?.length ? iconButton("tokens", "Token probabilities", () => this.toggleTokens(), { "aria-pressed": String(this.isTokens) }) : null,
    ];
  }

  branches(all) {
    if (all.length < 2) return null;
    const at = all.findIndex((each) => each.id === this.turn.id);
    const go = (step) => this.actions.choose(all[at + step]);
    return el(
      "span", { class: "branches" },
      iconButton("left", "Earlier branch", () => go(-1), { disabled: at === 0 }),
      `${at + 1}/${all.length}`,
      iconButton("right", "Later branch", () => go(1), { disabled: at === all.length - 1 }),
    );
  }

  toggleTokens() {
    this.isTokens = !this.isTokens;
    this.show(this.turn);
    this.showFoot();
  }

  edit() {
    const text = el("textarea", { rows: Math.min(12, 2 + this.turn.content.split("\n").length), "aria-label": "Edited text" });
    text.value = this.turn.content;
    const cancel = () => (this.show(this.turn), this.showFoot());
    const save = () => this.actions.edit(this.turn, text.value);
    text.addEventListener("keydown", (event) => {
      if (event.key === "Escape") cancel();
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
    });
    this.body.replaceChildren(text);
    this.foot.replaceChildren(
      el("button", { type: "button", class: "primary", onclick: save }, this.turn.role === "user" ? "Send" : "Save"),
      el("button", { type: "button", onclick: cancel }, "Cancel"),
    );
    text.focus();
  }
}

/** What the model thought, folded; open while there is nothing else to see yet. */
class Thinking {
  constructor() {
    this.summary = el("summary", {});
    this.markdown = new MarkdownView();
    this.element = el("details", { class: "thinking" }, this.summary, this.markdown.element);
    this.isTouched = false;
    this.summary.addEventListener("click", () => (this.isTouched = true));
  }

  show(text, isThinking) {
    this.summary.textContent = isThinking ? "Thinking …" : "Thoughts";
    if (!this.isTouched) this.element.open = isThinking;
    this.markdown.show(text);
  }
}

function callView(call) {
  return el(
    "figure", { class: "call" },
    el("figcaption", {}, icon("tool"), el("span", {}, "calls "), el("code", {}, call.name)),
    el("pre", { tabindex: "0" }, el("code", {}, readable(call.arguments))),
  );
}

function readable(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
