// The tree of a Markdown text as elements.

import { copyButton, el } from "./dom.mjs";
import { highlight } from "./highlight.mjs";
import { parse } from "./markdown.mjs";
import { mathElement, renewTime } from "./math/draw.mjs";

const INLINE = {
  code: (node) => el("code", {}, node.text),
  strong: (node) => el("strong", {}, ...inlines(node.children)),
  emphasis: (node) => el("em", {}, ...inlines(node.children)),
  deleted: (node) => el("del", {}, ...inlines(node.children)),
  break: () => el("br"),
  math: mathElement,
  link: (node) =>
    el("a", { href: node.href, title: node.href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...inlines(node.children)),
};

const BLOCKS = {
  paragraph: (block) => el("p", {}, ...inlines(block.children)),
  heading: (block) => el(`h${Math.min(block.level + 1, 6)}`, {}, ...inlines(block.children)),
  rule: () => el("hr"),
  quote: (block) => el("blockquote", {}, ...block.children.map(blockElement)),
  code: codeElement,
  list: listElement,
  math: (block) => el("p", {}, mathElement(block)),
  table: tableElement,
};

const inlines = (nodes) => nodes.map((node) => (typeof node === "string" ? node : INLINE[node.type](node)));
const blockElement = (block) => BLOCKS[block.type](block);

/** A text as it is, for what cannot be drawn. */
export const rawText = (text) => el("pre", { class: "raw" }, String(text ?? ""));

function guardedBlock(block) {
  try {
    return blockElement(block);
  } catch (error) {
    console.warn("A block is shown as plain text:", error);
    return rawText(block.raw);
  }
}

function codeElement(block) {
  const pieces = highlight(block.text, block.language).map(({ kind, text }) => (kind ? el("span", { class: `code-${kind}` }, text) : text));
  return el(
    "figure", { class: "code" },
    el("figcaption", {}, el("span", {}, block.language || "code"), copyButton(() => block.text, "Copy code")),
    el("pre", { tabindex: "0" }, el("code", {}, ...pieces)),
  );
}

function listElement(block) {
  const items = block.items.map(({ checked, children }) => {
    // An item of one paragraph is a tight one.
    const inside = children.map((child, i) => (i === 0 && child.type === "paragraph" ? el("span", {}, ...inlines(child.children)) : blockElement(child)));
    const box = checked === null ? null : el("input", { type: "checkbox", disabled: true, checked });
    return el("li", { class: box ? "task" : null }, box, ...inside);
  });
  return block.isOrdered ? el("ol", { start: block.start }, ...items) : el("ul", {}, ...items);
}

function tableElement(block) {
  const cell = (tag, nodes, i) => el(tag, { class: block.align[i] }, ...inlines(nodes));
  return el(
    "div", { class: "table", tabindex: "0" },
    el("table", {},
      el("thead", {}, el("tr", {}, ...block.head.map((nodes, i) => cell("th", nodes, i)))),
      el("tbody", {}, ...block.rows.map((row) => el("tr", {}, ...row.map((nodes, i) => cell("td", nodes, i)))))),
  );
}

/** Shows a text that grows: blocks whose source is the same keep their elements. */
export class MarkdownView {
  constructor() {
    this.element = el("div", { class: "markdown" });
    this.sources = [];
  }

  show(text) {
    renewTime();
    const blocks = parse(text);
    let same = 0;
    while (same < blocks.length && same < this.sources.length && this.sources[same] === blocks[same].raw) same += 1;
    while (this.element.childNodes.length > same) this.element.lastChild.remove();
    this.element.append(...blocks.slice(same).map(guardedBlock));
    this.sources = blocks.map((block) => block.raw);
  }
}
