// Where LaTeX stands in a text: `\(a\)`, `$a$`, `\[a\]`, `$$a$$`, and environments that begin a line.
// Markdown leaves what is inside alone. What has begun and not ended is shown as it was written.

const MAX_LINES = 200; // of one block; further lines are not searched, so time stays linear
const ENVIRONMENT = /^\\begin\{((?:equation|align(?:ed|at|edat)?|gather(?:ed)?|split|[bBpvV]?matrix|r?cases|array|CD)\*?)\}/;
const CLOSERS = { "\\[": "\\]", "$$": "$$" };
const PRICE = /^[\d.,]+\s+[A-Za-z]{2,}/; // "$5 and 10$" is about money

/** A math node: `text` is for KaTeX, `raw` is what was written. */
export const mathNode = (text, raw, isDisplay, isOpen = false) => ({ type: "math", text, raw, isDisplay, isOpen });

/** Display math that has its lines for itself: [node, line after it], or null. */
export function mathBlock(lines, at) {
  const first = lines[at].trimStart();
  const environment = ENVIRONMENT.exec(first);
  const mark = environment ? environment[0] : first.slice(0, 2);
  const closer = environment ? `\\end{${environment[1]}}` : Object.hasOwn(CLOSERS, mark) ? CLOSERS[mark] : null;
  return closer && block(lines, at, mark, closer, Boolean(environment));
}

function block(lines, at, mark, closer, isEnvironment) {
  const found = lastLine(lines, at, mark, closer);
  const raw = lines.slice(at, Math.min(found.line + 1, lines.length)).map((line) => line.trim()).join("\n");
  if (!found.isClosed) return [mathNode("", raw, true, true), found.line + 1];
  const end = raw.lastIndexOf(closer);
  const after = raw.slice(end + closer.length);
  if (!/^[.,;:]?$/.test(after)) return null; // words stand on the same line: it is part of a paragraph
  const text = isEnvironment ? raw.slice(0, end + closer.length) : raw.slice(mark.length, end);
  return text.includes(mark) && !isEnvironment ? null : [mathNode(text, raw, true), found.line + 1];
}

/** The line that closes the math; without one, the last line before a blank one. */
function lastLine(lines, at, mark, closer) {
  const most = Math.min(lines.length, at + MAX_LINES);
  let line = at;
  while (line < most && lines[line].trim()) {
    const text = line === at ? lines[line].trimStart().slice(mark.length) : lines[line];
    if (text.includes(closer)) return { line, isClosed: true };
    line += 1;
  }
  return { line: line - 1, isClosed: false };
}

/** Math inside a line. Ends are looked up with rising positions, so a text is passed once. */
export class MathSpans {
  constructor(text) {
    this.text = text;
    this.ends = { "\\)": { at: [], passed: 0 }, "\\]": { at: [], passed: 0 }, $: { at: [], passed: 0 }, "$$": { at: [], passed: 0 } };
    for (const { 0: mark, index } of text.matchAll(/\\[^]|\$+/g)) if (Object.hasOwn(this.ends, mark)) this.ends[mark].at.push(index);
  }

  /** The node at a `\(` or `\[` and its length; null where there is something else. */
  escaped(at) {
    const mark = this.text.slice(at, at + 2);
    if (mark !== "\\(" && mark !== "\\[") return null;
    const end = this.#next(mark === "\\(" ? "\\)" : "\\]", at + 2);
    if (end < 0) return { node: mathNode("", this.text.slice(at), false, true), length: this.text.length - at };
    return this.#node(at, end, 2, mark === "\\[");
  }

  /** The same at a `$`; one that is part of a price or a variable's name is none. */
  dollar(at) {
    const mark = this.text.startsWith("$$", at) ? "$$" : "$";
    const end = this.#next(mark, at + mark.length);
    if (end < 0 || (mark === "$$" && this.text[at + 2] === "$")) return null;
    return mark === "$$" || this.#isMath(at, end) ? this.#node(at, end, mark.length, mark === "$$") : null;
  }

  #node(at, end, width, isDisplay) {
    const inside = this.text.slice(at + width, end);
    return inside.trim() ? { node: mathNode(inside, this.text.slice(at, end + width), isDisplay), length: end + width - at } : null;
  }

  #isMath(at, end) {
    const inside = this.text.slice(at + 1, end);
    const isWord = (char) => char !== undefined && /[\p{L}\p{N}]/u.test(char);
    return /^\S/.test(inside) && /\S$/.test(inside) && !inside.includes("`") && !PRICE.test(inside) &&
      !isWord(this.text[at - 1]) && !isWord(this.text[end + 1]);
  }

  #next(mark, from) {
    const found = this.ends[mark];
    while (found.passed < found.at.length && found.at[found.passed] < from) found.passed += 1;
    return found.at[found.passed] ?? -1;
  }
}
