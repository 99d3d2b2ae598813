// Adding pictures and taking images away, with the token.
import { get, oneRun, picture, remove, runOf, searched, sendPicture, several, store, unlock } from "./api.js";
import { searchAddress } from "./cards.js";
import { $, count, named, toast } from "./dom.js";
import { given } from "./search.js";
import { forgetThresholds } from "./threshold.js";

let changed = () => {};

/** Set up everything that changes the gallery; `refresh` is called when cards have to be shown anew. */
export async function setUpWriting(refresh) {
  changed = refresh;
  const shared = new URLSearchParams(location.hash.slice(1)).get("token"); // in the address that the server printed
  if (shared) {
    history.replaceState(null, "", "#/search");
    await unlock(shared).catch((error) => toast(error.message, "problem"));
  }
  if (!store.state.writable) return;
  $("access").hidden = false;
  showAccess();
  $("access").addEventListener("click", () => (store.token ? lock() : ask()));
  $("access-dialog").querySelector("[data-close]").addEventListener("click", () => $("access-dialog").close());
  $("access-form").addEventListener("submit", tryToken);
  $("add").addEventListener("submit", add);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-take]");
    if (button) take(button.closest(".card"));
  });
}

function showAccess() {
  const words = store.token ? "Changes are allowed: lock" : "Allow changes";
  $("access").setAttribute("aria-label", words);
  $("access").title = words;
  $("access").classList.toggle("open", Boolean(store.token));
  $("add-note").textContent = store.token ? "" : "The token will be asked for.";
}

function lock() {
  store.token = null;
  sessionStorage.removeItem("nearfar-token");
  showAccess();
  changed();
  toast("Locked: changes need the token again.");
}

/** Ask for the token; whether it was given. */
function ask() {
  const dialog = $("access-dialog");
  $("access-problem").textContent = "";
  $("token").value = "";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => done(Boolean(store.token)), { once: true }));
}

async function tryToken(event) {
  event.preventDefault();
  try {
    await unlock($("token").value.trim());
  } catch (error) {
    $("access-problem").textContent = error.message;
    return;
  }
  $("access-dialog").close();
  showAccess();
  changed();
}

async function allowed() {
  return Boolean(store.token) || ask();
}

/** A token that has become wrong, as after a new start of the server, is asked for again. */
function failed(error) {
  if (error.status === 401) lock();
  toast(error.message, "problem");
}

async function add(event) {
  event.preventDefault();
  const query = given(new URLSearchParams(location.hash.split("?")[1] ?? ""));
  const label = $("add-label").value.trim();
  if (!query || !label || !(await allowed())) return;
  const button = $("add").querySelector("button");
  button.disabled = true;
  try {
    for (const run of several() ? searched() : [oneRun()]) {
      const answer = await sendPicture(`runs/${run}/items`, { label }, query.file, { write: true });
      runOf(run).images = answer.images;
      const where = several() ? `${runOf(run).name}, ` : "";
      toast(`Added to ${label} (${where}now ${count(answer.images)} images).`);
    }
    $("add-label").value = "";
    await refreshState();
  } catch (error) {
    failed(error);
  } finally {
    button.disabled = false;
  }
}

/** Take away the image of a card. */
export async function take(card) {
  const { run, item, label } = card.dataset;
  if (!store.state.writable || !(await allowed())) return;
  const dialog = $("remove-dialog");
  $("remove-picture").src = picture(run, item, 96);
  $("remove-words").textContent = `${named(label || null)} leaves the gallery and is no longer found. Its file is deleted only if it was added on this page.`;
  dialog.returnValue = "";
  dialog.showModal();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  if (dialog.returnValue !== "remove") return;
  try {
    const answer = await remove(`runs/${run}/items/${item}`);
    runOf(run).images = answer.images;
    toast(`Taken away: ${named(label || null)}. ${count(answer.images)} images are left.`);
    const grid = card.closest("[data-grid]");
    card.remove();
    grid?.querySelector("a")?.focus();
    if (location.hash === searchAddress(run, item)) location.hash = "#/search";
    await refreshState(false);
  } catch (error) {
    failed(error);
  }
}

async function refreshState(redraw = true) {
  forgetThresholds();
  store.state = await get("state");
  if (redraw) changed();
}
