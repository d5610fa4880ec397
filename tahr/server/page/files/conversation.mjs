// Conversations as plain data. A conversation is a tree of turns: editing or regenerating adds a branch and loses nothing.

import { areImages } from "./compose/images.mjs";
import { own } from "./own.mjs";

export const FORMAT = "tahr-conversations";
export const VERSION = 1;
const ROLES = new Set(["user", "assistant", "tool"]);
const MAX_CONVERSATIONS = 10_000;
export const MAX_TURNS = 10_000; // of one conversation: each is drawn beside its branches
const TITLE = 60;
const LEFT_OUT = "(An earlier image is left out.)"; // so that the model does not look for it in another one

export function newConversation(now = Date.now()) {
  return { id: crypto.randomUUID(), title: "", isNamed: false, created: now, updated: now, turns: [], chosen: {} };
}

/** Add a turn below `parent` (null: at the beginning) and follow it. */
export function addTurn(conversation, parent, turn) {
  const made = { ...turn, id: conversation.turns.reduce((most, each) => Math.max(most, each.id), -1) + 1, parent };
  conversation.turns.push(made);
  conversation.chosen[key(parent)] = made.id;
  if (!conversation.isNamed && turn.role === "user" && !conversation.title) conversation.title = titleOf(turn.content);
  conversation.updated = Date.now();
  return made;
}

/** Take back a turn that nothing followed. */
export function dropTurn(conversation, turn) {
  conversation.turns = conversation.turns.filter((each) => each !== turn);
  delete conversation.chosen[key(turn.parent)];
  if (!conversation.turns.length && !conversation.isNamed) conversation.title = "";
}

const key = (parent) => String(parent ?? "");

export function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > TITLE ? line.slice(0, TITLE - 1) + "…" : line;
}

/** Turns with the same parent, oldest first: the branches at that place. */
export function siblings(conversation, turn) {
  return conversation.turns.filter((each) => each.parent === turn.parent);
}

export function choose(conversation, turn) {
  conversation.chosen[key(turn.parent)] = turn.id;
}

/** The turns from the beginning to the end of the chosen branch. */
export function path(conversation) {
  const below = new Map();
  for (const turn of conversation.turns) {
    const at = key(turn.parent);
    if (!below.has(at)) below.set(at, []);
    below.get(at).push(turn);
  }
  const made = [];
  let at = "";
  while (below.has(at)) {
    const turns = below.get(at);
    const turn = turns.find((each) => each.id === own(conversation.chosen, at)) ?? turns.at(-1);
    made.push(turn);
    at = key(turn.id);
  }
  return made;
}

/** Calls of the last assistant turn that have no result yet. */
export function openCalls(turns) {
  const made = turns.findLastIndex((turn) => turn.toolCalls?.length);
  if (made < 0) return [];
  const after = turns.slice(made + 1);
  return after.every((turn) => turn.role === "tool") ? turns[made].toolCalls.slice(after.length) : [];
}

/** The messages of a request with the newest `mostImages` images: what was thought and measured stays here. */
export function messages(turns, system = "", mostImages = Infinity) {
  let nLeftOut = Math.max(0, imageCount(turns) - mostImages);
  const made = turns.map((turn) => {
    const n = Math.min(nLeftOut, turn.images?.length ?? 0);
    nLeftOut -= n;
    return message(n ? { ...turn, content: [LEFT_OUT, turn.content].filter(Boolean).join("\n\n"), images: turn.images.slice(n) } : turn);
  });
  return system ? [{ role: "system", content: system }, ...made] : made;
}

export const imageCount = (turns) => turns.reduce((n, turn) => n + (turn.images?.length ?? 0), 0);

/** How many images a server that refuses a request says that it takes. */
export function mostImages(error) {
  return error.code === "too_many_images" ? Number(/may have (\d+)/.exec(error.message)?.[1]) : NaN;
}

function message(turn) {
  if (turn.role === "tool") return { role: "tool", tool_call_id: turn.callId, name: turn.name, content: contentOf(turn) };
  const calls = (turn.toolCalls ?? []).map(({ id, name, arguments: sent }) => ({
    id, type: "function", function: { name, arguments: sent },
  }));
  return { role: turn.role, content: contentOf(turn), ...(calls.length ? { tool_calls: calls } : {}) };
}

// Images come before the text about them, as models learn it.
function contentOf({ content, images }) {
  if (!images?.length) return content;
  const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return content ? [...parts, { type: "text", text: content }] : parts;
}

/** A conversation of its own that holds the turns up to `last`. */
export function fork(conversation, last) {
  const made = newConversation();
  let parent = null;
  for (const turn of path(conversation)) {
    parent = addTurn(made, parent, turn).id;
    if (turn.id === last.id) break;
  }
  made.title = titleOf(`${conversation.title || "Chat"} (branch)`);
  made.isNamed = true;
  return made;
}

// ---- files ------------------------------------------------------------------------------------------------------

export function exported(conversations) {
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 1);
}

/** The conversations of a file that `exported` made, checked field by field, under new ids. */
export function imported(text) {
  let content;
  try {
    content = JSON.parse(text);
  } catch {
    throw new Error("This is not a file of conversations: it does not hold JSON.");
  }
  if (content?.format !== FORMAT) throw new Error("This is not a file of conversations: it has another format.");
  if (content.version !== VERSION) throw new Error(`This file has version ${content.version}; this page reads version ${VERSION}.`);
  const found = content.conversations;
  if (!Array.isArray(found) || found.length > MAX_CONVERSATIONS) throw damaged();
  return found.map(checked);
}

const damaged = () => new Error("This file is damaged: a conversation in it is incomplete.");
const isText = (value) => typeof value === "string";
const isMaybe = (value, check) => value === undefined || value === null || check(value);

function checked(conversation) {
  const { title, created, updated, turns, isNamed } = conversation ?? {};
  if (!isText(title) || !Array.isArray(turns)) throw damaged();
  if (turns.length > MAX_TURNS) throw new Error(`A conversation in this file has more than ${MAX_TURNS} messages.`);
  const made = { ...newConversation(), title: title.slice(0, 200), isNamed: Boolean(isNamed), created: Number(created) || 0, updated: Number(updated) || 0 };
  const ids = new Set();
  for (const turn of turns) {
    if (!isTurn(turn, ids)) throw damaged();
    ids.add(turn.id);
    made.turns.push(cleanTurn(turn));
  }
  for (const [at, id] of Object.entries(conversation.chosen ?? {})) if (ids.has(id)) made.chosen[at] = id;
  return made;
}

// A parent comes before its children, so a file cannot make a circle.
function isTurn(turn, ids) {
  return Boolean(turn) && Number.isInteger(turn.id) && !ids.has(turn.id) && (turn.parent === null || ids.has(turn.parent)) &&
    ROLES.has(turn.role) && isText(turn.content) && isMaybe(turn.reasoning, isText) && isMaybe(turn.model, isText) &&
    isMaybe(turn.statsLine, isText) && isMaybe(turn.callId, isText) && isMaybe(turn.name, isText) && isMaybe(turn.note, isText) &&
    isMaybe(turn.toolCalls, areCalls) && isMaybe(turn.tokens, areTokens) && isMaybe(turn.images, areImages);
}

const areCalls = (calls) =>
  Array.isArray(calls) && calls.every((call) => call && isText(call.id) && isText(call.name) && isText(call.arguments));
const isToken = (token) => token && isText(token.text) && Number.isFinite(token.logprob);
const areTokens = (tokens) =>
  Array.isArray(tokens) && tokens.every((token) => isToken(token) && Array.isArray(token.top) && token.top.every(isToken));

function cleanTurn(turn) {
  const names = ["id", "parent", "role", "content", "reasoning", "model", "statsLine", "callId", "name", "note", "toolCalls", "tokens", "images"];
  return Object.fromEntries(names.filter((name) => turn[name] !== undefined && turn[name] !== null || name === "parent").map((name) => [name, turn[name]]));
}
