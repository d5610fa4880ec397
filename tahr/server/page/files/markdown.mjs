// Markdown as a plain tree: `parse` gives blocks, `inline` the parts of a line. HTML is never read: a tag is text.
// A model's output is hostile: every loop here is linear in the text, and nesting is bounded.

import { mathBlock, MathSpans } from "./math/spans.mjs";
import { own } from "./own.mjs";

const MAX_BLOCK_DEPTH = 8;
const MAX_INLINE_DEPTH = 12;
const MAX_URL = 2000;
const PROTOCOLS = new Set(["http:", "https:", "mailto:"]);

/** The address a link may have, or null: only the web and mail, never a script or a file. */
export function safeUrl(text) {
  try {
    const url = new URL(text);
    return PROTOCOLS.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

// ---- blocks -----------------------------------------------------------------------------------------------------

/** Blocks of a text; each top-level block has its source as `raw`, by which a view can keep what has not changed. */
export function parse(text) {
  return blocks(text.replace(/\r\n?/g, "\n").split("\n"), 0);
}

function blocks(lines, depth) {
  const made = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [block, next] = blockAt(lines, at, depth);
    block.raw = lines.slice(at, next).join("\n");
    made.push(block);
    at = next;
  }
  return made;
}

const READERS = [fence, mathBlock, heading, rule, quote, list, table];

function blockAt(lines, at, depth) {
  for (const read of READERS) {
    const found = read(lines, at, depth);
    if (found) return found;
  }
  return paragraph(lines, at, depth);
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !beginsBlock(lines, end, depth)) end += 1;
  return [{ type: "paragraph", children: inline(lines.slice(at, end).map((line) => line.trim()).join("\n")) }, end];
}

function beginsBlock(lines, at, depth) {
  const line = lines[at];
  return Boolean(
    fenceMark(line) || mathBlock(lines, at) || headingLevel(line) || isRule(line) ||
    (depth < MAX_BLOCK_DEPTH && (/^ {0,3}>/.test(line) || marker(line))) || isTable(lines, at),
  );
}

function fenceMark(line) {
  const found = /^( {0,3})(`{3,}|~{3,})([^`]*)$/.exec(line);
  return found && { indent: found[1].length, mark: found[2], language: found[3].trim().split(/\s/)[0].slice(0, 40) };
}

function fence(lines, at) {
  const opened = fenceMark(lines[at]);
  if (!opened) return null;
  const inside = [];
  let end = at + 1;
  while (end < lines.length && !closes(lines[end], opened.mark)) {
    inside.push(lines[end].slice(Math.min(opened.indent, indentOf(lines[end]))));
    end += 1;
  }
  const isClosed = end < lines.length;
  return [{ type: "code", language: opened.language, text: inside.join("\n"), isClosed }, end + (isClosed ? 1 : 0)];
}

function closes(line, mark) {
  const text = line.trim();
  return text.length >= mark.length && text === mark[0].repeat(text.length);
}

function headingLevel(line) {
  const found = /^ {0,3}(#{1,6})(?=\s|$)/.exec(line);
  return found ? found[1].length : 0;
}

function heading(lines, at) {
  const level = headingLevel(lines[at]);
  if (!level) return null;
  const text = lines[at].trim().slice(level).trim();
  let end = text.length;
  while (end > 0 && text[end - 1] === "#") end -= 1;
  const isClosed = end < text.length && (end === 0 || text[end - 1] === " ");
  return [{ type: "heading", level, children: inline(isClosed ? text.slice(0, end).trim() : text) }, at + 1];
}

function isRule(line) {
  const marks = line.replace(/\s+/g, "");
  return marks.length >= 3 && "-*_".includes(marks[0]) && marks === marks[0].repeat(marks.length);
}

function rule(lines, at) {
  return isRule(lines[at]) ? [{ type: "rule" }, at + 1] : null;
}

function quote(lines, at, depth) {
  if (depth >= MAX_BLOCK_DEPTH || !/^ {0,3}>/.test(lines[at])) return null;
  let end = at;
  while (end < lines.length && /^ {0,3}>/.test(lines[end])) end += 1;
  const inside = lines.slice(at, end).map((line) => line.replace(/^ {0,3}> ?/, ""));
  return [{ type: "quote", children: blocks(inside, depth + 1) }, end];
}

// ---- lists ------------------------------------------------------------------------------------------------------

const indentOf = (line) => line.length - line.trimStart().length;

function marker(line) {
  const found = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/.exec(line);
  if (!found || isRule(line)) return null;
  const isOrdered = /\d/.test(found[2]);
  return { indent: found[1].length, width: found[0].length, isOrdered, start: isOrdered ? parseInt(found[2], 10) : 0 };
}

function list(lines, at, depth) {
  const first = depth < MAX_BLOCK_DEPTH && marker(lines[at]);
  if (!first || first.indent > 3) return null;
  const items = [];
  let end = at;
  for (;;) {
    const found = end < lines.length ? marker(lines[end]) : null;
    if (!found || found.isOrdered !== first.isOrdered || found.indent > first.indent + 1) break;
    const [item, next] = listItem(lines, end, found, depth);
    items.push(item);
    end = skipBlank(lines, next);
  }
  while (end > at && !lines[end - 1].trim()) end -= 1;
  return [{ type: "list", isOrdered: first.isOrdered, start: first.start, items }, end];
}

function skipBlank(lines, at) {
  while (at < lines.length && !lines[at].trim()) at += 1;
  return at;
}

function listItem(lines, at, found, depth) {
  const inside = [lines[at].slice(found.width)];
  let end = at + 1;
  while (end < lines.length && belongs(lines, end, found)) {
    inside.push(lines[end].slice(Math.min(indentOf(lines[end]), Math.max(found.width, 2))));
    end += 1;
  }
  const task = /^\[([ xX])\] /.exec(inside[0]);
  if (task) inside[0] = inside[0].slice(4);
  return [{ checked: task ? task[1] !== " " : null, children: blocks(inside, depth + 1) }, end];
}

/** Whether a line goes on with the item above it: deeper than its mark, or a line of the same paragraph. */
function belongs(lines, at, item) {
  const line = lines[at];
  if (!line.trim()) {
    const next = skipBlank(lines, at);
    return next < lines.length && indentOf(lines[next]) >= item.indent + 2;
  }
  if (indentOf(line) >= item.indent + 2) return true;
  return Boolean(lines[at - 1].trim()) && !beginsBlock(lines, at, 0);
}

// ---- tables -----------------------------------------------------------------------------------------------------

function cells(line) {
  const text = line.trim();
  const inner = text.slice(text.startsWith("|") ? 1 : 0, text.endsWith("|") && !text.endsWith("\\|") ? -1 : undefined);
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

const ALIGN = { "::": "center", "-:": "right" };

function isTable(lines, at) {
  if (!lines[at].includes("|") || at + 1 >= lines.length || !lines[at + 1].includes("-")) return false;
  const under = cells(lines[at + 1]);
  return under.every((cell) => /^:?-+:?$/.test(cell)) && under.length === cells(lines[at]).length;
}

function table(lines, at) {
  if (!isTable(lines, at)) return null;
  const head = cells(lines[at]).map(inline);
  const align = cells(lines[at + 1]).map((cell) => own(ALIGN, cell[0] + cell.at(-1), "left"));
  const rows = [];
  let end = at + 2;
  while (end < lines.length && lines[end].trim() && lines[end].includes("|")) {
    rows.push(cells(lines[end]).slice(0, head.length).map(inline));
    end += 1;
  }
  return [{ type: "table", head, align, rows }, end];
}

// ---- inline -----------------------------------------------------------------------------------------------------

const SPECIAL = /[\\`*_~[!\n$]|https?:\/\/|<br ?\/?>/gi;

/** Strings and nodes of a text: code, math, strong, emphasis, deleted, link, break. */
export function inline(text, depth = 0) {
  const scan = new InlineScan(text, depth);
  while (scan.at < text.length) scan.step();
  return scan.finish();
}

class InlineScan {
  constructor(text, depth) {
    this.text = text;
    this.depth = depth;
    this.at = 0;
    this.parts = []; // strings, nodes, and delimiters that may still open something
    this.open = { "*": [[], []], _: [[], []], "~": [[], []] }; // indexes in `parts`, of single and of double marks
    this.ticks = tickRuns(text);
    this.brackets = bracketPairs(text);
    this.math = new MathSpans(text);
  }

  step() {
    SPECIAL.lastIndex = this.at;
    const found = SPECIAL.exec(this.text);
    const end = found ? found.index : this.text.length;
    if (end > this.at) this.parts.push(this.text.slice(this.at, end));
    this.at = end;
    if (found) this.special(found[0]);
  }

  special(mark) {
    if (mark === "\\") this.formula(this.math.escaped(this.at)) || this.escape();
    else if (mark === "$") this.formula(this.math.dollar(this.at)) || this.dollars();
    else if (mark === "`") this.code();
    else if (Object.hasOwn(this.open, mark)) this.delimiter(mark);
    else if (mark === "[" || mark === "!") this.link(mark);
    else if (mark.length > 1 && mark[0].toLowerCase() === "h") this.address();
    else this.add({ type: "break" }, mark.length);
  }

  add(part, length) {
    this.parts.push(part);
    this.at += length;
  }

  formula(found) {
    if (found) this.add(found.node, found.length);
    return Boolean(found);
  }

  dollars() {
    const n = runLength(this.text, this.at);
    this.add("$".repeat(n), n);
  }

  escape() {
    const next = this.text[this.at + 1];
    const isEscape = next !== undefined && /[!-/:-@[-`{-~]/.test(next);
    this.add(isEscape ? next : "\\", isEscape ? 2 : 1);
  }

  code() {
    const length = runLength(this.text, this.at);
    const end = this.ticks.next(length, this.at + length);
    if (end < 0) return this.add(this.text.slice(this.at, this.at + length), length);
    const inside = this.text.slice(this.at + length, end).replaceAll("\n", " ");
    const isPadded = inside.startsWith(" ") && inside.endsWith(" ") && inside.trim();
    return this.add({ type: "code", text: isPadded ? inside.slice(1, -1) : inside }, end + length - this.at);
  }

  address() {
    const [found] = /^[^\s<>"'`]*/.exec(this.text.slice(this.at, this.at + MAX_URL));
    const shown = found.replace(/[.,;:!?)\]}*_~]{1,50}$/, "");
    const href = safeUrl(shown);
    this.add(href ? { type: "link", href, children: [shown] } : shown, shown.length);
  }

  link(mark) {
    const isImage = mark === "!";
    const from = this.at + (isImage ? 1 : 0);
    const close = this.text[from] === "[" ? this.brackets.get(from) : undefined;
    const target = close === undefined || this.depth > 3 ? null : destination(this.text, close + 1);
    const href = target && safeUrl(target.url);
    if (!href) return this.add(mark, 1);
    const inside = this.text.slice(from + 1, close);
    // A picture is not fetched: its address could tell a stranger what was said here.
    const children = isImage ? [inside || "image"] : inline(inside, this.depth + 1);
    return this.add({ type: "link", href, children }, target.end - this.at);
  }

  delimiter(mark) {
    const n = runLength(this.text, this.at);
    const before = this.text[this.at - 1] ?? " ";
    const after = this.text[this.at + n] ?? " ";
    const isWord = (char) => /[\p{L}\p{N}]/u.test(char);
    const opens = /\S/.test(after) && (mark !== "_" || !isWord(before));
    const closesRun = /\S/.test(before) && (mark !== "_" || !isWord(after));
    this.at += n;
    if (n > 3 || (mark === "~" && n !== 2)) return this.parts.push(mark.repeat(n));
    const left = closesRun ? this.close(mark, n) : n;
    return left && this.leave(mark, left, opens);
  }

  /** Close what is open, the innermost first; gives the number of marks that are left. */
  close(mark, n) {
    while (n > 0) {
      const [single, double] = this.open[mark];
      const one = single.at(-1) ?? -1;
      const two = n > 1 ? (double.at(-1) ?? -1) : -1;
      if (Math.max(one, two) < 0 || !this.wrap(mark, two > one || (n === 2 && two >= 0) ? 2 : 1)) return n;
      n -= this.closed;
    }
    return 0;
  }

  wrap(mark, length) {
    const at = this.open[mark][length - 1].at(-1);
    const children = this.parts.slice(at + 1).map(plain);
    const level = 1 + children.reduce((most, child) => Math.max(most, child.level ?? 0), 0);
    if (level > MAX_INLINE_DEPTH) {
      this.forget(0); // all marks before this place are text, or each closing mark would look at the whole text again
      return false;
    }
    this.parts.length = at;
    this.forget(at);
    const type = mark === "~" ? "deleted" : length === 2 ? "strong" : "emphasis";
    this.parts.push({ type, children: merged(children), level });
    this.closed = length;
    return true;
  }

  forget(from) {
    for (const stacks of Object.values(this.open)) {
      for (const stack of stacks) while (stack.length && stack.at(-1) >= from) stack.pop();
    }
  }

  leave(mark, n, opens) {
    for (const length of n === 3 ? [2, 1] : [n]) {
      if (opens) this.open[mark][length - 1].push(this.parts.length);
      this.parts.push({ type: "mark", text: mark.repeat(length) });
    }
  }

  finish() {
    return merged(this.parts.map(plain));
  }
}

const plain = (part) => (part.type === "mark" ? part.text : part);

/** Neighbouring strings become one. */
function merged(parts) {
  const made = [];
  for (const part of parts) {
    if (typeof part === "string" && typeof made.at(-1) === "string") made[made.length - 1] += part;
    else made.push(part);
  }
  return made;
}

function runLength(text, at) {
  let end = at;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

/** Where runs of backticks of each length are; asked for with rising positions, so each run is passed once. */
function tickRuns(text) {
  const runs = new Map();
  for (const { 0: run, index } of text.matchAll(/`+/g)) {
    if (!runs.has(run.length)) runs.set(run.length, { at: [], passed: 0 });
    runs.get(run.length).at.push(index);
  }
  return {
    next(length, from) {
      const found = runs.get(length);
      if (!found) return -1;
      while (found.passed < found.at.length && found.at[found.passed] < from) found.passed += 1;
      return found.at[found.passed] ?? -1;
    },
  };
}

function bracketPairs(text) {
  const pairs = new Map();
  const open = [];
  for (const { 0: char, index } of text.matchAll(/\\.|[[\]]/gs)) {
    if (char === "[") open.push(index);
    else if (char === "]" && open.length) pairs.set(open.pop(), index);
  }
  return pairs;
}

/** The `(address "title")` after a link's text. */
function destination(text, at) {
  if (text[at] !== "(") return null;
  const found = /^\(\s{0,9}<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*){0,4})>?(?:\s{1,9}"[^"\n]{0,300}")?\s{0,9}\)/.exec(text.slice(at, at + MAX_URL));
  return found && { url: found[1], end: at + found[0].length };
}
