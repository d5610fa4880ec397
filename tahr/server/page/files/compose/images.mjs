// Images that go with a message: made small in the browser, sent as JPEG, and shown from memory.

import { el } from "../dom.mjs";

export const MAX_SIDE = 2048; // of what is sent: a larger image is shrunk
export const MAX_IMAGES = 32;
const QUALITY = 0.9;
const KINDS = /^image\/(png|jpeg|webp|avif|gif|bmp)$/;
const SENT = /^data:image\/jpeg;base64,[A-Za-z0-9+/]+={0,2}$/;

export const isImage = (file) => KINDS.test(file.type);

/** Width and height of what is sent. */
export function smaller(width, height) {
  const scale = Math.min(1, MAX_SIDE / Math.max(width, height));
  return [width, height].map((side) => Math.max(1, Math.round(side * scale)));
}

/** Images as they are kept in a file of conversations: nothing else may stand there. */
export const areImages = (images) =>
  Array.isArray(images) && images.length <= MAX_IMAGES && images.every((each) => typeof each === "string" && SENT.test(each));

/** A file as a data URI of a JPEG, upright and no larger than needed; what is transparent becomes white. */
export async function shrunk(file, name) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${name} is no image that this browser can read.`);
  }
  const [width, height] = smaller(bitmap.width, bitmap.height);
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d");
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0, width, height);
  bitmap.close();
  return canvas.toDataURL("image/jpeg", QUALITY);
}

/** The bytes of a data URI that `shrunk` made. */
export function bytesOf(uri) {
  return Uint8Array.from(atob(uri.slice(uri.indexOf(",") + 1)), (letter) => letter.charCodeAt(0));
}

/** A picture of it; the page may show what it made itself, and no address that somebody wrote. */
export function picture(uri) {
  const address = URL.createObjectURL(new Blob([bytesOf(uri)], { type: "image/jpeg" }));
  const made = el("img", { class: "sent", alt: "Image of this message", src: address });
  made.addEventListener("load", () => URL.revokeObjectURL(address));
  return made;
}
