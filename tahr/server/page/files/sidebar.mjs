// The list of conversations.

import { exported } from "./conversation.mjs";
import { $, el, iconButton } from "./dom.mjs";

const MOST_BYTES = 400_000_000; // of a file that is imported: images are in it, and no text may be much longer

/** Give the browser a file to save. */
export function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = el("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

export function exportFile(conversations) {
  const name = conversations.length === 1 ? fileName(conversations[0].title) : "conversations";
  download(`${name}.json`, exported(conversations));
}

const fileName = (title) => title.replace(/[^\p{L}\p{N} -]+/gu, "").trim().slice(0, 60) || "conversation";

/** Ask for a file and give its text. */
export function chooseFile(onText, onError) {
  const input = el("input", { type: "file", accept: "application/json,.json" });
  input.addEventListener("change", async () => {
    const [file] = input.files;
    if (!file) return;
    if (file.size > MOST_BYTES) onError(new Error("The file is larger than 400 MB: import conversations one by one."));
    else onText(await file.text());
  });
  input.click();
}

/** Show the conversations that match the search, newest first; `actions`: open, rename, remove. */
export function showConversations(conversations, current, running, actions) {
  const wanted = $("search").value.trim().toLowerCase();
  const shown = conversations
    .filter((each) => each.turns.length && matches(each, wanted))
    .sort((a, b) => b.updated - a.updated);
  $("conversations").replaceChildren(...shown.map((each) => item(each, each === current, running.has(each.id), actions)));
  $("none").hidden = shown.length > 0;
}

function matches(conversation, wanted) {
  return !wanted || conversation.title.toLowerCase().includes(wanted) || conversation.turns.some((turn) => String(turn.content).toLowerCase().includes(wanted));
}

function item(conversation, isCurrent, isRunning, actions) {
  const title = conversation.title || "New chat";
  const open = el("button", { type: "button", class: "open", title, onclick: () => actions.open(conversation), "aria-current": isCurrent ? "true" : null }, title);
  const row = el(
    "li", { class: [isCurrent ? "current" : "", isRunning ? "running" : ""].join(" ").trim() || null },
    open,
    iconButton("edit", `Rename ${title}`, () => rename(row, conversation, actions)),
    iconButton("download", `Export ${title}`, () => exportFile([conversation])),
    iconButton("trash", `Delete ${title}`, () => confirmRemoval(row, conversation, actions)),
  );
  return row;
}

function rename(row, conversation, actions) {
  const input = el("input", { "aria-label": "New title", maxlength: 200 });
  input.value = conversation.title;
  const finish = (isKept) => actions.rename(conversation, isKept ? input.value.trim() : "");
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") finish(true);
    if (event.key === "Escape") finish(false);
  });
  input.addEventListener("blur", () => finish(true), { once: true });
  row.replaceChildren(input);
  input.select();
}

function confirmRemoval(row, conversation, actions) {
  const yes = el("button", { type: "button", class: "danger", onclick: () => actions.remove(conversation) }, "Delete");
  row.replaceChildren(el("span", { class: "sure" }, "Delete it?"), yes, el("button", { type: "button", onclick: actions.refresh }, "Keep"));
  yes.focus();
}
