// The page: what is shown, what runs, and what buttons and keys do.

import { chat } from "./api.mjs";
import { Attachments, imagesAmong, withFiles } from "./compose/attach.mjs";
import { welcome } from "./compose/starters.mjs";
import { addTurn, choose, dropTurn, fork, imageCount, imported, messages, mostImages, newConversation, openCalls, path } from "./conversation.mjs";
import { $, announce, icon } from "./dom.mjs";
import { chosenModel, refreshModels, watchModels } from "./models.mjs";
import { Monitor } from "./monitor.mjs";
import { own } from "./own.mjs";
import { requestFields, showParameters, systemPrompt } from "./parameters.mjs";
import { chooseFile, exportFile, showConversations } from "./sidebar.mjs";
import { openStore, settings } from "./store.mjs";
import { statsLine } from "./stream.mjs";
import { TurnView } from "./turns.mjs";

const FINISHES = { length: "cut at the longest reply", content_filter: "filtered", abort: "cut: the server has ended" };
const THEMES = ["auto", "light", "dark"];

const store = await openStore();
let conversations = await store.all();
let current = newConversation();
const running = new Map(); // id of a conversation -> {stop, view}: one reply at a time each

// ---- what is shown ------------------------------------------------------------------------------------------------

function showThread() {
  const turns = path(current);
  const views = turns.map((turn) => new TurnView(current, turn, actions));
  $("thread").replaceChildren(...(turns.length ? views.map((view) => view.element) : [emptyThread()]));
  const run = running.get(current.id);
  if (run) $("thread").append(run.view.element);
  showComposer();
  $("thread").scrollTop = turns.length ? $("thread").scrollHeight : 0;
}

function emptyThread() {
  return welcome(store.isLasting ? "Conversations stay in this browser." : "This browser keeps nothing: conversations end with the page.", (prompt) => {
    $("text").value = prompt;
    grow();
    $("text").focus();
  });
}

function showComposer() {
  const isRunning = running.has(current.id);
  const [call] = openCalls(path(current));
  $("send").hidden = isRunning;
  $("stop").hidden = !isRunning;
  $("text").placeholder = call ? `Result of ${call.name}` : "Message";
  $("text").setAttribute("aria-label", call ? `Result of ${call.name}` : "Message");
}

function showSidebar() {
  showConversations(conversations, current, running, actions);
}

/** Say something above the composer; `offer` is a way out, with a label and what it does. */
function notice(text, offer = null) {
  $("notice").hidden = !text;
  $("notice-text").textContent = text;
  $("notice-action").hidden = !offer;
  $("notice-action").textContent = offer?.label ?? "";
  $("notice-action").onclick = offer?.action ?? null;
}

function isAtEnd() {
  const thread = $("thread");
  return thread.scrollHeight - thread.scrollTop - thread.clientHeight < 80;
}

// ---- conversations ------------------------------------------------------------------------------------------------

async function save(conversation) {
  if (!conversations.includes(conversation)) conversations.push(conversation);
  showSidebar();
  await keep(conversation);
}

async function keep(conversation) {
  await store.put(conversation).catch(() => notice("The browser could not keep this conversation: its storage may be full."));
}

function open(conversation) {
  current = conversation;
  $("app").classList.remove("shows-sidebar");
  notice("");
  showThread();
  showSidebar();
  $("text").focus();
}

const actions = {
  open,
  refresh: showSidebar,
  rename(conversation, title) {
    if (title) Object.assign(conversation, { title, isNamed: true });
    save(conversation);
  },
  remove(conversation) {
    running.get(conversation.id)?.stop.abort();
    conversations = conversations.filter((each) => each !== conversation);
    store.remove(conversation.id).catch(() => undefined);
    if (conversation === current) open(newConversation());
    showSidebar();
  },
  choose(turn) {
    choose(current, turn);
    save(current);
    showThread();
  },
  fork(turn) {
    const made = fork(current, turn);
    save(made);
    open(made);
  },
  edit(turn, text) {
    if (running.has(current.id) || !text.trim()) return;
    const { role, toolCalls, model, images } = turn;
    const made = addTurn(current, turn.parent, role === "user" ? { role, content: text, images } : { role, content: text, toolCalls, model, note: "edited" });
    save(current);
    showThread();
    if (role === "user") reply(current, made);
  },
  regenerate(turn) {
    if (running.has(current.id)) return;
    reply(current, current.turns.find((each) => each.id === turn.parent) ?? null);
  },
};

// ---- replies ------------------------------------------------------------------------------------------------------

/** Turns from the beginning to `last`. */
function turnsTo(conversation, last) {
  const byId = new Map(conversation.turns.map((turn) => [turn.id, turn]));
  const made = [];
  for (let turn = last; turn; turn = byId.get(turn.parent)) made.unshift(turn);
  return made;
}

/** Draws at most every 50 ms, and less often where drawing takes long. */
function paced(draw) {
  let timer = null;
  let cost = 0;
  return () => {
    timer ??= setTimeout(() => {
      const began = performance.now();
      timer = null;
      draw();
      cost = performance.now() - began;
    }, Math.max(50, 4 * cost));
  };
}

function begin(conversation, parent) {
  const draft = { role: "assistant", content: "", model: chosenModel(), id: -1, parent: parent?.id ?? null };
  const run = { stop: new AbortController(), view: new TurnView(conversation, draft, actions), reply: null };
  run.view.show(draft, true);
  run.view.showFoot(true);
  running.set(conversation.id, run);
  if (conversation === current) {
    // What is below the parent now is another branch.
    const turns = turnsTo(conversation, parent);
    $("thread").replaceChildren(...turns.map((turn) => new TurnView(conversation, turn, actions).element), run.view.element);
    $("thread").scrollTop = $("thread").scrollHeight;
  }
  showComposer();
  showSidebar();
  return run;
}

/** Stream a reply below `parent`; what came is kept, also when it was stopped. True if something came. */
async function reply(conversation, parent) {
  notice("");
  const run = begin(conversation, parent);
  let note = "";
  const draw = paced(() => {
    if (!running.has(conversation.id) || conversation !== current) return;
    const follows = isAtEnd();
    run.view.show(run.reply, true);
    if (follows) $("thread").scrollTop = $("thread").scrollHeight;
  });
  try {
    const body = { model: chosenModel() || null, messages: messages(turnsTo(conversation, parent), systemPrompt(), conversation.mostImages), ...requestFields() };
    await chat(body, run.stop.signal, (made) => ((run.reply = made), draw()));
  } catch (error) {
    note = error.name === "AbortError" ? "stopped" : error.message;
    if (note !== "stopped") notice(...refusal(error, conversation, parent));
  }
  running.delete(conversation.id);
  const isKept = finish(conversation, parent, run, note);
  if (conversation === current) showThread();
  showSidebar();
  return isKept;
}

/** What a refusal says, and a way out of it. */
function refusal(error, conversation, parent) {
  const most = mostImages(error);
  if (!(most > 0)) return [error.message];
  const n = imageCount(turnsTo(conversation, parent)) - most;
  const what = n === 1 ? "The oldest one" : `The ${n} oldest`;
  const label = n === 1 ? "Leave the oldest image out" : `Leave the ${n} oldest images out`;
  const text = `This conversation has ${most + n} images, and the server takes ${most} in a request. ${what} can be left out of what is sent; here nothing is lost.`;
  const again = () => {
    conversation.mostImages = most;
    save(conversation);
    notice("");
    if (conversation.turns.includes(parent)) reply(conversation, parent); // a reply that was asked for again
    else if (conversation === current) send();
  };
  return [text, { label, action: again }];
}

function finish(conversation, parent, run, note) {
  const made = run.reply;
  if (!made || (made.isEmpty && note)) return false;
  const { content, reasoning, toolCalls, tokens, finish: reason } = made;
  addTurn(conversation, parent?.id ?? null, {
    role: "assistant", content, reasoning, toolCalls: toolCalls.filter(Boolean), tokens, model: made.model || chosenModel(),
    statsLine: statsLine(made.stats), note: note || own(FINISHES, reason, ""),
  });
  save(conversation);
  announce(note || "The reply is complete.");
  return true;
}

async function send() {
  await attachments.adding;
  const typed = $("text").value.trim();
  const conversation = current;
  if (!(typed || attachments.files.length) || running.has(conversation.id)) return;
  const files = attachments.take();
  const text = withFiles(typed, files);
  const images = imagesAmong(files);
  $("text").value = "";
  grow();
  const turns = path(conversation);
  const calls = openCalls(turns);
  const turn = calls.length ? { role: "tool", content: text, callId: calls[0].id, name: calls[0].name, images } : { role: "user", content: text, images };
  const made = addTurn(conversation, turns.at(-1)?.id ?? null, turn);
  save(conversation);
  showThread();
  if (calls.length > 1) return; // the model waits for the other results
  const isAnswered = await reply(conversation, made);
  if (!isAnswered) takeBack(conversation, made, typed, files);
  if (conversation === current) $("text").focus();
}

// Without a reply there was no question: its text is there again, to be changed or sent once more.
function takeBack(conversation, turn, text, files) {
  dropTurn(conversation, turn);
  save(conversation);
  if (conversation !== current) return;
  showThread();
  if (!$("text").value) $("text").value = text;
  if (!attachments.files.length) attachments.restore(files);
  grow();
}

// ---- controls -----------------------------------------------------------------------------------------------------

function grow() {
  const area = $("text");
  area.style.height = "auto";
  area.style.height = `${Math.min(area.scrollHeight + 2, window.innerHeight * 0.4)}px`;
}

const monitor = new Monitor();
const attachments = new Attachments(notice);

function showPanel(name) {
  const wasAtEnd = isAtEnd(); // lines break elsewhere beside a panel
  $("panel").hidden = !name;
  $("app").classList.toggle("shows-panel", Boolean(name));
  for (const each of ["parameters", "server"]) {
    $(each).hidden = each !== name;
    $(`show-${each}`).setAttribute("aria-expanded", String(each === name));
  }
  $("panel-title").textContent = name === "server" ? "Server" : "Parameters";
  if (name === "server") monitor.start();
  else monitor.stop();
  if (wasAtEnd) $("thread").scrollTop = $("thread").scrollHeight;
}

const togglePanel = (name) => showPanel($("panel").hidden || $(name).hidden ? name : "");

function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").title = `Theme: ${theme}`;
  $("theme").setAttribute("aria-label", `Theme: ${theme}`);
}

function nextTheme() {
  const theme = THEMES[(THEMES.indexOf(settings.read("theme", "auto")) + 1) % THEMES.length];
  settings.write("theme", theme);
  showTheme(theme);
}

function importText(text) {
  const found = imported(text);
  conversations.push(...found);
  for (const conversation of found) keep(conversation);
  showSidebar();
  notice(found.length === 1 ? "One conversation was imported." : `${found.length} conversations were imported.`);
}

function guarded(action) {
  return (...values) => {
    try {
      return action(...values);
    } catch (error) {
      return notice(error.message);
    }
  };
}

function onKey(event) {
  if (event.key === "Escape" && !event.defaultPrevented) {
    if (running.has(current.id)) running.get(current.id).stop.abort();
    else if (!$("panel").hidden) showPanel("");
    else $("app").classList.remove("shows-sidebar");
  }
  if (event.altKey && event.key.toLowerCase() === "n") open(newConversation());
}

const CLICKS = {
  new: () => open(newConversation()),
  menu: () => $("app").classList.toggle("shows-sidebar"),
  veil: () => ($("app").classList.remove("shows-sidebar"), showPanel("")),
  stop: () => running.get(current.id)?.stop.abort(),
  theme: nextTheme,
  export: () => exportFile(conversations.filter((each) => each.turns.length)),
  import: () => chooseFile(guarded(importText), (error) => notice(error.message)),
  "show-parameters": () => togglePanel("parameters"),
  "show-server": () => togglePanel("server"),
  "close-panel": () => showPanel(""),
  "close-notice": () => notice(""),
};

function connect() {
  for (const [id, action] of Object.entries(CLICKS)) $(id).addEventListener("click", action);
  for (const button of document.querySelectorAll("[data-icon]")) button.prepend(icon(button.dataset.icon));
  $("form").addEventListener("submit", (event) => (event.preventDefault(), send()));
  $("text").addEventListener("input", grow);
  $("text").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  $("search").addEventListener("input", showSidebar);
  document.addEventListener("keydown", onKey);
}

connect();
attachments.connect();
showTheme(settings.read("theme", "auto"));
showParameters(() => refreshModels().then(() => notice(""), (error) => notice(error.message)));
showPanel("");
open(current);
watchModels((error) => notice(error.message));
