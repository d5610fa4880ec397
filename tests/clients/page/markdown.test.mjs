// Markdown as a tree: what people and models write, what a stranger might, and time that grows with the text alone.
import assert from "node:assert";
import { createRequire } from "node:module";
import test from "node:test";
import { highlight } from "../../../tahr/server/page/files/highlight.mjs";
import { formulaTree } from "../../../tahr/server/page/files/math/draw.mjs";
import { inline, parse, safeUrl } from "../../../tahr/server/page/files/markdown.mjs";

/** A tree in short: [type, ...children]. */
const short = (node) =>
  typeof node === "string" ? node
  : node.type === "code" ? ["code", ...(node.language ? [node.language] : []), node.text]
  : node.type === "math" ? [node.isOpen ? "open" : node.isDisplay ? "display" : "math", node.isOpen ? node.raw : node.text]
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

test("math is left alone", () => {
  const cases = {
    "\\(a^2\\)": [["math", "a^2"]],
    "so \\(a_1 * b_2\\) and \\[x\\_y\\], **b**": ["so ", ["math", "a_1 * b_2"], " and ", ["display", "x\\_y"], ", ", ["strong", "b"]],
    "$x_1$, $$y*z*$$": [["math", "x_1"], ", ", ["display", "y*z*"]],
    "**bold $a*b*c$**": [["strong", "bold ", ["math", "a*b*c"]]],
    "`\\(a\\)` and `$b$`": [["code", "\\(a\\)"], " and ", ["code", "$b$"]],
    "it costs $5 and then $10, or $5-$10, US$5 and CA$": ["it costs $5 and then $10, or $5-$10, US$5 and CA$"],
    "from $5 and 10$": ["from $5 and 10$"],
    "a \\$5 b $c": ["a $5 b $c"],
    "echo `$HOME` $PATH, `$x`": ["echo ", ["code", "$HOME"], " $PATH, ", ["code", "$x"]],
    "\\\\(a\\\\)": ["\\(a\\)"],
    "half \\(a_1 * b *": ["half ", ["open", "\\(a_1 * b *"]],
    "$$": ["$$"],
    "\\( \\)": ["( )"],
  };
  for (const [text, tree] of Object.entries(cases)) assert.deepStrictEqual(line(text), tree, text);
  assert.deepStrictEqual(page("So\n\\[\na\n+ b\n- c\n\\]\nend"), [["paragraph", "So"], ["display", "\na\n+ b\n- c\n"], ["paragraph", "end"]]);
  assert.deepStrictEqual(page("$$a$$ and $$b$$"), [["paragraph", ["display", "a"], " and ", ["display", "b"]]]);
  assert.deepStrictEqual(page("- x\n  $$\n  a\n  $$\n- y"), [["list", ["item", ["paragraph", "x"], ["display", "\na\n"]], ["item", ["paragraph", "y"]]]]);
  assert.deepStrictEqual(page("\\begin{align*}\na &= b\n\\end{align*}"), [["display", "\\begin{align*}\na &= b\n\\end{align*}"]]);
  assert.deepStrictEqual(page("\\begin{itemize}\n"), [["paragraph", "\\begin{itemize}"]]);
  assert.deepStrictEqual(page("\\[ a\n\n**b**"), [["open", "\\[ a"], ["paragraph", ["strong", "b"]]], "nothing after a blank line is lost");
});

test("while a text comes, a formula is drawn when it is complete", () => {
  const text = "So \\(a_1\\) and $b^2$ and $$c$$ then\n\n\\[\nd + e\n\\]\n\n$$\nf\n$$\n\n\\begin{align}\ng &= h\n\\end{align}\n\n- \\(i\\)";
  const formulas = (node) => (typeof node === "string" ? [] : node.type === "math" ? (node.isOpen ? [] : [`${node.isDisplay} ${node.text}`]) : [...(node.children ?? []), ...(node.items ?? [])].flatMap(formulas));
  const whole = new Set(parse(text).flatMap(formulas));
  assert.strictEqual(whole.size, 7);
  for (let n = 0; n <= text.length; n += 1) {
    for (const formula of parse(text.slice(0, n)).flatMap(formulas)) assert.ok(whole.has(formula), `${JSON.stringify(text.slice(0, n))} draws ${formula}`);
  }
});

test("a formula is refused before it can grow, and what is drawn is plain", () => {
  const katex = createRequire(import.meta.url)("../../../tahr/server/page/third_party/katex/katex.min.js");
  const draw = (text) => formulaTree(katex, text, true).toMarkup();
  assert.match(draw("\\frac{a}{b} \\le \\sqrt{x}"), /mfrac.*katex-html/s);
  const markup = draw("\\vec{v} = \\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}");
  assert.doesNotMatch(markup, /<svg[^>]* style=/, "the policy would refuse it");
  const refused = {
    [`\\def\\a{${"x".repeat(2000)}}${"\\a".repeat(300)}`]: /defines macros/,
    "\\newcommand{\\x}{\\x\\x}\\x": /defines macros/,
    "\\gdef\\x{\\x}": /defines macros/,
    ["{".repeat(10_000)]: /longer than/,
    ["{".repeat(1000) + "}".repeat(1000)]: /nested more than/,
    ["&".repeat(2000)]: /cells/,
    "\\frac{a}": /parse error/,
    ["\\TeX".repeat(700)]: /Too many expansions/,
  };
  for (const [text, reason] of Object.entries(refused)) assert.throws(() => draw(text), reason, text.slice(0, 40));
  for (const hostile of ["\\href{javascript:x}{y}", "\\htmlData{a=b}{c}", "\\includegraphics{https://evil.example/x.png}", "\\text{<img src=x onerror=y>}", "\\url{https://evil.example}"]) {
    assert.doesNotMatch(draw(hostile), /<(?:a|img)\b|data-a/, hostile);
  }
  assert.doesNotMatch(draw("\\rule{5000em}{5000em}"), /5000em;/);
});

test("drawing a formula takes bounded time", () => {
  const katex = createRequire(import.meta.url)("../../../tahr/server/page/third_party/katex/katex.min.js");
  const nest = (before, after) => before.repeat(39) + "x" + after.repeat(39);
  const fill = (part) => part.repeat(Math.floor(2900 / part.length));
  const cases = [
    fill("x^2+"), fill("\\rm "), fill("\\not"), fill("'"), fill("\\vec a"), fill("{a"), "\\begin{matrix}" + "&".repeat(590) + "\\end{matrix}",
    nest("\\frac{", "}{y}"), nest("\\left(", "\\right)"), nest("\\begin{matrix}", "\\end{matrix}"), nest("\\mathchoice{x}{x}{x}{", "}"), nest("\\Braket{", "}"),
  ];
  for (const text of cases) {
    const began = cpuMs();
    try {
      formulaTree(katex, text, true).toMarkup();
    } catch (error) {
      assert.match(error.message, /\S/);
    }
    assert.ok(cpuMs() - began < 4000, text.slice(0, 30));
  }
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
  const pieces = ["*a ", "a* ", "[", "[a](", "![", "`a``b", "*_", "> ", "- ", "1. ", "#", "|", "|-", "http://", "\\", "**a *b ", "\\(", "\\[\n", "\\[ a\n", "$", "$$", "$a ", "$$\n", "a $b$ ", "\\begin{align}\n", "\\) \\(", "  ", "- a\n\n", "> a\n", "*x*", "~~a", "```\n", "<br>"];
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
  const inherited = Object.getOwnPropertyNames(Object.prototype); // names that every table seems to have
  for (const language of ["python", "js", "sql", "json", "", "unknown", ...inherited]) {
    assert.strictEqual(highlight(code, language).map((piece) => piece.text).join(""), code);
  }
  const kinds = Object.fromEntries(highlight('def f(): return "x" # y', "python").filter((piece) => piece.kind).map((piece) => [piece.text, piece.kind]));
  assert.deepStrictEqual(kinds, { def: "keyword", return: "keyword", '"x"': "string", "# y": "comment" });
  const began = performance.now();
  for (const piece of ['"', "'", "/*", "`", '"""', "a.", "\\"]) highlight(piece.repeat(50_000 / piece.length), "js");
  assert.ok(performance.now() - began < 3000);
});
