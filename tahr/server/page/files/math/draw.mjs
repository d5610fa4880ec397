// Formulas as elements, drawn by KaTeX, which index.html loads. A formula is as hostile as the rest of a reply: its size
// is bounded, it may define nothing, and what cannot be drawn is shown as it was written, never as an error.

import { el } from "../dom.mjs";

export const MAX_CHARS = 3000;
export const MAX_DEPTH = 40; // of braces and environments; KaTeX works by recursion
export const MAX_CELLS = 600; // separators of columns, whose time grows with the square
const MAX_KEPT = 300;
const MOST_MS = 2000; // of drawing at once; what is left then is shown as it was written
const DEFINES = /\\(?:[egx]?def|let|futurelet|global|long|(?:re)?newcommand|providecommand)(?![A-Za-z])/; // they may grow for ever
const OPTIONS = { trust: false, strict: "ignore", throwOnError: true, maxSize: 20, maxExpand: 500 };
let leftMs = MOST_MS;
const kept = new Map(); // drawn formulas, which a reply that grows shows again and again

/** Why a formula is not given to KaTeX, or nothing. */
export function refusal(text) {
  if (text.length > MAX_CHARS) return `longer than ${MAX_CHARS} characters`;
  if (DEFINES.test(text)) return "it defines macros";
  if (text.split("&").length > MAX_CELLS) return `more than ${MAX_CELLS} cells`;
  return depthOf(text) > MAX_DEPTH ? `nested more than ${MAX_DEPTH} levels deep` : "";
}

function depthOf(text) {
  let depth = 0;
  let most = 0;
  for (const [mark] of text.matchAll(/\\(?:begin|end|left|right)(?![A-Za-z])|\\[^]|[{}]/g)) {
    if (mark === "{" || mark === "\\begin" || mark === "\\left") most = Math.max(most, (depth += 1));
    else if (mark === "}" || mark === "\\end" || mark === "\\right") depth -= 1;
  }
  return most;
}

/** KaTeX's tree of a formula; throws where it cannot be drawn. */
export function formulaTree(katex, text, isDisplay) {
  const reason = refusal(text);
  if (reason) throw new Error(reason);
  const tree = katex.__renderToDomTree(text, { ...OPTIONS, displayMode: isDisplay });
  setStylesByScript(tree);
  return tree;
}

// The policy forbids attributes named `style`; the same styles set by a script are allowed.
function setStylesByScript(node) {
  for (const child of node.children ?? []) setStylesByScript(child);
  const style = node.attributes?.style;
  if (!style) return;
  delete node.attributes.style;
  const toNode = node.toNode.bind(node);
  node.toNode = () => {
    const made = toNode();
    made.style.cssText = style;
    return made;
  };
}

/** Before a message is drawn: it may take its time again. */
export const renewTime = () => (leftMs = MOST_MS);

/** The element of a math node. */
export function mathElement({ text, raw, isDisplay, isOpen }) {
  if (isOpen || !globalThis.katex) return el("span", { class: "math-source" }, raw);
  const key = `${isDisplay} ${text}`;
  if (!kept.has(key) && leftMs <= 0) return el("code", { class: "math-source" }, raw);
  if (!kept.has(key)) keep(key, drawn(text, raw, isDisplay));
  return kept.get(key).cloneNode(true);
}

function keep(key, element) {
  if (kept.size >= MAX_KEPT) kept.clear();
  kept.set(key, element);
}

function drawn(text, raw, isDisplay) {
  const began = performance.now();
  try {
    return el("span", { class: isDisplay ? "math display" : "math" }, formulaTree(globalThis.katex, text, isDisplay).toNode());
  } catch (error) {
    return el("code", { class: "math-source", title: `This formula is shown as it was written: ${error.message}` }, raw);
  } finally {
    leftMs -= performance.now() - began;
  }
}
