// Files that go with a message. Texts are put into it as fenced blocks with their names, images go beside it.

import { $, el, iconButton } from "../dom.mjs";
import { isImage, picture, shrunk } from "./images.mjs";

export const MAX_BYTES = 200_000; // of one file: about fifty thousand tokens
export const MAX_FILES = 10;
const MAX_NAME = 100;

/** The text of a file; throws a sentence where it is no text or too large. */
export function textOf(name, bytes) {
  if (bytes.byteLength > MAX_BYTES) throw tooLarge(name);
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw notText(name);
  }
  if (text.includes("\0")) throw notText(name);
  return text.replace(/\r\n?/g, "\n");
}

const tooLarge = (name) => new Error(`${name} is larger than ${MAX_BYTES / 1000} kB: attach a part of it.`);
const notText = (name) => new Error(`${name} is neither an image nor a text file (UTF-8): only those can be attached.`);

/** A message with its files below it; a fence is longer than any in the file. */
export function withFiles(text, files) {
  return [text, ...files.filter((file) => !file.image).map(fenced)].filter(Boolean).join("\n\n");
}

/** The images among the files. */
export const imagesAmong = (files) => files.map((file) => file.image).filter(Boolean);

function fenced({ name, text }) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  const [, language = ""] = /\.([A-Za-z0-9]{1,12})$/.exec(name) ?? [];
  return `${name}:\n${fence}${language.toLowerCase()}\n${text.replace(/\n$/, "")}\n${fence}`;
}

/** A name on one line, without what would end it. */
export const cleanName = (name) => name.replace(/[\p{C}`]+/gu, " ").trim().slice(-MAX_NAME) || "file";

/** The files of the message being written. */
export class Attachments {
  constructor(onError) {
    this.onError = onError;
    this.files = [];
    this.adding = Promise.resolve(); // until all files that were chosen are there
  }

  connect() {
    const input = el("input", { type: "file", multiple: true, class: "hidden", "aria-label": "Files", tabindex: "-1" });
    input.addEventListener("change", async () => {
      await this.add([...input.files]);
      input.value = "";
    });
    $("attach").title = `Attach images, or text files (up to ${MAX_BYTES / 1000} kB each)`;
    $("attach").after(input);
    $("attach").addEventListener("click", () => input.click());
    $("text").addEventListener("paste", (event) => {
      const pasted = [...event.clipboardData.files].filter(isImage);
      // What is copied in a table or a text has a picture of itself beside it.
      if (!pasted.length || event.clipboardData.types.includes("text/plain")) return;
      event.preventDefault();
      this.add(pasted);
    });
    $("chat").addEventListener("dragover", (event) => event.dataTransfer.types.includes("Files") && event.preventDefault());
    $("chat").addEventListener("drop", (event) => {
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      this.add([...event.dataTransfer.files]);
    });
  }

  /** Add files behind those that are still being read. */
  add(chosen) {
    this.adding = this.adding.then(() => this.#addAll(chosen));
    return this.adding;
  }

  async #addAll(chosen) {
    try {
      for (const file of chosen) await this.#addOne(file);
    } catch (error) {
      this.onError(error.message);
    }
    this.show();
  }

  async #addOne(file) {
    const name = cleanName(file.name);
    if (this.files.length >= MAX_FILES) throw new Error(`A message can have ${MAX_FILES} files: send these first.`);
    if (isImage(file)) {
      this.files.push({ name, image: await shrunk(file, name) });
      return;
    }
    if (file.size > MAX_BYTES) throw tooLarge(name); // before it is read
    this.files.push({ name, text: textOf(name, await file.arrayBuffer()) });
  }

  /** The files, which are then gone from the message. */
  take() {
    const taken = this.files;
    this.restore([]);
    return taken;
  }

  restore(files) {
    this.files = files;
    this.show();
  }

  show() {
    const chips = this.files.map((file) => {
      const remove = () => this.restore(this.files.filter((each) => each !== file));
      return el("li", {}, file.image ? picture(file.image) : null, el("span", {}, file.name), iconButton("close", `Remove ${file.name}`, remove));
    });
    $("files").replaceChildren(...chips);
    $("files").hidden = !chips.length;
  }
}
