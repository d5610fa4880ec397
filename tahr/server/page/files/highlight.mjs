// Colours for code: comments, strings, numbers and words most languages reserve. A guess, not a parser; linear in the text.

import { own } from "./own.mjs";

const WORDS = new Set(
  ("abstract and as async await break case catch class const continue crate def default defer del do elif else end enum except export extends " +
    "false False finally fn for foreach from func function global go if impl import in instanceof interface is lambda let loop match mod module " +
    "move mut namespace new nil None nonlocal not null or package pass private protected pub public raise ref return select self Self static " +
    "struct super switch template then this throw throws trait true True try type typedef typeof union unless unsafe until use using var virtual " +
    "void when where while with yield SELECT FROM WHERE JOIN LEFT RIGHT INNER ON GROUP BY ORDER INSERT INTO VALUES UPDATE SET DELETE CREATE TABLE " +
    "AS AND OR NOT NULL LIMIT int float double char bool string str list dict long short unsigned echo fi done esac local").split(" "),
);
const HASH = ["#[^\n]*"];
const SLASH = ["//[^\n]*", "/\\*(?:[^*]|\\*(?!/))*(?:\\*/)?"];
const DASH = ["--[^\n]*"];
const COMMENTS = {
  ...Object.fromEntries("python py sh bash shell zsh fish ruby rb yaml yml toml r perl make makefile dockerfile ini conf elixir nix".split(" ").map((name) => [name, HASH])),
  ...Object.fromEntries("sql lua haskell hs ada elm".split(" ").map((name) => [name, DASH])),
  php: [...SLASH, ...HASH],
  json: [],
};
const STRINGS = ['"""[^]*?(?:"""|$)', "'''[^]*?(?:'''|$)", '"(?:[^"\\\\\\n]|\\\\.)*"?', "'(?:[^'\\\\\\n]|\\\\.)*'?", "`(?:[^`\\\\]|\\\\.)*`?"];
const PLAIN = new Set(["", "text", "txt", "plain", "plaintext", "output", "console", "markdown", "md", "diff", "csv"]);
const MOST = 50_000; // characters that are coloured; the rest of a longer text is plain

function pattern(language) {
  const comments = own(COMMENTS, language, SLASH);
  const alternatives = { comment: comments, string: STRINGS, number: ["\\b\\d[\\w.]*"], word: ["[A-Za-z_$][\\w$]*"] };
  const groups = Object.entries(alternatives).filter(([, parts]) => parts.length);
  return new RegExp(groups.map(([name, parts]) => `(?<${name}>${parts.join("|")})`).join("|"), "g");
}

/** Pieces of `text` in order, each with the kind `comment`, `string`, `number`, `keyword` or none. */
export function highlight(text, language) {
  const name = language.toLowerCase();
  if (PLAIN.has(name)) return [{ kind: "", text }];
  const pieces = [];
  let at = 0;
  const add = (kind, piece) => {
    if (!kind && pieces.length && !pieces.at(-1).kind) pieces.at(-1).text += piece;
    else if (piece) pieces.push({ kind, text: piece });
  };
  for (const found of text.slice(0, MOST).matchAll(pattern(name))) {
    const [kind] = Object.entries(found.groups).find(([, value]) => value !== undefined);
    add("", text.slice(at, found.index));
    add(kind !== "word" ? kind : WORDS.has(found[0]) ? "keyword" : "", found[0]);
    at = found.index + found[0].length;
  }
  add("", text.slice(at));
  return pieces;
}
