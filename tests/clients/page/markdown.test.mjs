// Markdown as a tree: what people and models write, what a stranger might, and time that grows with the text alone.
import assert from "node:assert";
import test from "node:test";
import { highlight } from "../../../tahr/server/page/files/highlight.mjs";
import { inline, parse, safeUrl } from "../../../tahr/server/page/files/markdown.mjs";

/** A tree in short: [type, ...children]. */
const short = (node) =>
  typeof node === "string" ? node
  : node.type === "code" ? ["code", ...(node.language ? [node.language] : []), node.text]
  : node.type === "link" ? ["link", node.href, ...node.children.map(short)]
  : node.type === "list" ? [node.isOrdered ? `list ${node.start}` : "list", ...node.items.map((item) => [item.checked ?? "item", ...item.children.map(short)])]
  : node.type === "table" ? ["table", node.align.join(), ...[node.head, ...node.rows].map((row) => row.map((cell) => cell.map(short)))]
  : [node.type, ...(node.children ?? []).map(short)];
const line = (text) => inline(text).map(short);
const page = (text) => parse(text).map(short);

test("inline", () => {
  const cases = {
    "plain": ["plain"],
    "a **b *c* d** e": ["a ", ["strong", "b ", ["emphasis", "c"], " d"], " e"],
    "***both*** ~~gone~~": [["strong", ["emphasis", "both"]], " ", ["deleted", "gone"]],
    "snake_case_name and _this_": ["snake_case_name and ", ["emphasis", "this"]],
    "2 * 3 * 4 and **open": ["2 * 3 * 4 and **open"],
    "**a *b**": [["strong", "a *b"]],
    "`a *b*` and ``c ` d``": [["code", "a *b*"], " and ", ["code", "c ` d"]],
    "\\*no\\* \\d": ["*no* \\d"],
    "one\ntwo<br>three": ["one", ["break"], "two", ["break"], "three"],
    "[t](https://a.example/b_(c)) x": [["link", "https://a.example/b_(c)", "t"], " x"],
    "see https://a.example/b_c, or (http://d.example).": ["see ", ["link", "https://a.example/b_c", "https://a.example/b_c"], ", or (", ["link", "http://d.example/", "http://d.example"], ")."],
    "![alt](https://a.example/i.png)": [["link", "https://a.example/i.png", "alt"]],
    "[**b**](mailto:x@a.example)": [["link", "mailto:x@a.example", ["strong", "b"]]],
  };
  for (const [text, tree] of Object.entries(cases)) assert.deepStrictEqual(line(text), tree, text);
});

test("blocks", () => {
  assert.deepStrictEqual(page("# One\n\ntext\nmore\n## Two ##\n---"), [["heading", "One"], ["paragraph", "text", ["break"], "more"], ["heading", "Two"], ["rule"]]);
  assert.deepStrictEqual(page("- a\n  - b\n    - c\n- d"), [["list", ["item", ["paragraph", "a"], ["list", ["item", ["paragraph", "b"], ["list", ["item", ["paragraph", "c"]]]]]], ["item", ["paragraph", "d"]]]]);
  assert.deepStrictEqual(page("3. x\n\n4. y\n   more\n\nend"), [["list 3", ["item", ["paragraph", "x"]], ["item", ["paragraph", "y", ["break"], "more"]]], ["paragraph", "end"]]);
  assert.deepStrictEqual(page("- [x] a\n- [ ] b"), [["list", [true, ["paragraph", "a"]], [false, ["paragraph", "b"]]]]);
  assert.deepStrictEqual(page("1. a\n\n   ```sh\n   ls\n   ```\n2. b"), [["list 1", ["item", ["paragraph", "a"], ["code", "sh", "ls"]], ["item", ["paragraph", "b"]]]]);
  assert.deepStrictEqual(page("> a\n> > b\n\nc"), [["quote", ["paragraph", "a"], ["quote", ["paragraph", "b"]]], ["paragraph", "c"]]);
  assert.deepStrictEqual(page("```js\nlet a\n\n# no\n```\nafter"), [["code", "js", "let a\n\n# no"], ["paragraph", "after"]]);
  assert.deepStrictEqual(page("````\n```\n````"), [["code", "```"]]);
  assert.deepStrictEqual(page("| a | b |\n|:-:|--:|\n| 1 | x\\|y |\nend"), [["table", "center,right", [["a"], ["b"]], [["1"], ["x|y"]]], ["paragraph", "end"]]);
});

test("a block that is still coming", () => {
  const [block] = parse("```py\nprint(");
  assert.deepStrictEqual([block.type, block.text, block.isClosed], ["code", "print(", false]);
});

test("every prefix of a text is a text: nothing is lost before the last block", () => {
  const text = "# A\n\nb **c**\n\n- d\n- e\n\n```py\nf\n```\n\n| g | h |\n|---|---|\n| 1 | 2 |\n\n> i\n";
  const whole = parse(text).map((block) => block.raw);
  for (let n = 0; n <= text.length; n += 1) {
    const raws = parse(text.slice(0, n)).map((block) => block.raw);
    const isSame = raws.slice(0, -1).every((raw, i) => whole[i].startsWith(raw.split("\n")[0]));
    assert.ok(isSame, text.slice(0, n));
  }
});

test("addresses", () => {
  for (const bad of ["javascript:alert(1)", "JaVaScRiPt:alert(1)", " javascript:x", "java\tscript:x", "data:text/html,x", "vbscript:x", "file:///etc/passwd", "blob:x", "//a.example", "/x", ""]) {
    assert.strictEqual(safeUrl(bad), null, bad);
  }
  assert.strictEqual(safeUrl("https://a.example/\"x"), "https://a.example/%22x");
});

test("HTML is text", () => {
  for (const text of ["<script>x</script>", "<img src=x onerror=y>", "<b>x</b>", "&lt;b&gt;"]) assert.deepStrictEqual(line(text), [text]);
});

// Of the processor, because others may use the machine.
const cpuMs = () => { const { user, system } = process.cpuUsage(); return (user + system) / 1000; };

test("time grows with the text, depth is bounded", () => {
  const depth = (node) => (typeof node === "string" ? 0 : 1 + Math.max(0, ...[...(node.children ?? []), ...(node.items ?? [])].slice(0, 50).map(depth)));
  const pieces = ["*a ", "a* ", "[", "[a](", "![", "`a``b", "*_", "> ", "- ", "1. ", "#", "|", "|-", "http://", "\\", "**a *b ", "  ", "- a\n\n", "> a\n", "*x*", "~~a", "```\n", "<br>"];
  for (const piece of [...pieces, ...pieces.map((each) => each + each.split("").reverse().join(""))]) {
    const text = piece.repeat(Math.ceil(60_000 / piece.length));
    const began = cpuMs();
    const tree = parse(text);
    const taken = cpuMs() - began;
    assert.ok(taken < 2000, `${JSON.stringify(piece)} takes ${taken} ms`);
    assert.ok(Math.max(0, ...tree.slice(0, 50).map(depth)) < 80, JSON.stringify(piece));
  }
  const nested = "*a ".repeat(10_000) + "a* ".repeat(10_000);
  const began = cpuMs();
  assert.ok(Math.max(...parse(nested).map(depth)) < 80 && cpuMs() - began < 2000);
});

test("coloured code is the same text", () => {
  const code = '# a "b"\ndef f(x): return 1.5 + len("c # d") // e\n/* open';
  for (const language of ["python", "js", "sql", "json", "", "unknown"]) {
    assert.strictEqual(highlight(code, language).map((piece) => piece.text).join(""), code);
  }
  const kinds = Object.fromEntries(highlight('def f(): return "x" # y', "python").filter((piece) => piece.kind).map((piece) => [piece.text, piece.kind]));
  assert.deepStrictEqual(kinds, { def: "keyword", return: "keyword", '"x"': "string", "# y": "comment" });
  const began = performance.now();
  for (const piece of ['"', "'", "/*", "`", '"""', "a.", "\\"]) highlight(piece.repeat(50_000 / piece.length), "js");
  assert.ok(performance.now() - began < 3000);
});
