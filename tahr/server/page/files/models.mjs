// The choice of a model, and whether the server is ready for it.

import { health, models } from "./api.mjs";
import { $, el } from "./dom.mjs";
import { own } from "./own.mjs";
import { settings } from "./store.mjs";

const STATES = {
  ok: ["ready", "ready"],
  busy: ["busy", "in a long step"],
  loading: ["loading", "loading the model …"],
  closing: ["bad", "shutting down"],
  failing: ["bad", "failing: see the server’s log"],
};
const OFFLINE = ["bad", "not reachable"];

export const chosenModel = () => $("model").value;

const MODEL_STATES = { loaded: "", loading: " · loading …", unloading: " · unloading …", unloaded: " · loads when asked" };

function option(card, chosen) {
  const text = card.id + own(MODEL_STATES, card.state, "");
  const made = el("option", { value: card.id, title: card.context_size ? `context: ${card.context_size} tokens` : "" }, text);
  made.selected = card.id === chosen;
  return made;
}

function showState([name, text]) {
  $("state").className = `state ${name}`;
  $("state").title = text;
  $("state-text").textContent = name === "ready" ? "" : text;
}

let shown = "";

/** A list that has not changed is left alone: somebody may have it open. */
function showModels(cards) {
  const facts = JSON.stringify(cards.map((card) => [card.id, card.state, card.context_size]));
  if (facts === shown) return;
  shown = facts;
  const chosen = $("model").value || settings.read("model", "");
  $("model").replaceChildren(...cards.map((card) => option(card, chosen)));
}

/** Read models and state; throws what the server refuses with. */
export async function refreshModels() {
  let report;
  try {
    report = await health();
  } catch (error) {
    showState(OFFLINE);
    throw error;
  }
  showState(own(STATES, report.status, ["busy", report.status]));
  const cards = await models();
  showModels(cards);
  return report.status;
}

/** Look again: often while the server loads, seldom when it is ready. */
export function watchModels(onError) {
  $("model").addEventListener("change", () => settings.write("model", chosenModel()));
  const look = async () => {
    const status = await refreshModels().catch((error) => (onError(error), "failing"));
    setTimeout(look, status === "ok" || document.hidden ? 10_000 : 1500);
  };
  return look();
}
