// Adding and removing images, which needs the token.
import { get, oneRun, picture, remove, runOf, searched, sendPicture, several, store, unlock } from "./api.js";
import { searchAddress } from "./cards.js";
import { $, count, named, toast } from "./dom.js";
import { uploadedQuery } from "./search.js";
import { forgetThresholds } from "./threshold.js";

let redrawPage = () => {};

/** Set up the controls that change the gallery; `redraw` shows the current view again. */
export async function setUpWriting(redraw) {
  redrawPage = redraw;
  const shared = new URLSearchParams(location.hash.slice(1)).get("token"); // in the address that the server printed
  if (shared) {
    history.replaceState(null, "", "#/search");
    await unlock(shared).catch((error) => toast(error.message, "problem"));
  }
  if (!store.state.writable) return;
  $("access").hidden = false;
  showAccess();
  $("access").addEventListener("click", () => (store.token ? lock() : askForToken()));
  $("access-dialog").querySelector("[data-close]").addEventListener("click", () => $("access-dialog").close());
  $("access-form").addEventListener("submit", tryToken);
  $("add").addEventListener("submit", add);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-remove]");
    if (button) removeImage(button.closest(".card"));
  });
}

function showAccess() {
  const label = store.token ? "Changes are allowed: lock" : "Allow changes";
  $("access").setAttribute("aria-label", label);
  $("access").title = label;
  $("access").classList.toggle("open", Boolean(store.token));
  $("add-note").textContent = store.token ? "" : "Adding a picture needs the token.";
}

function lock() {
  store.token = null;
  sessionStorage.removeItem("nearfar-token");
  showAccess();
  redrawPage();
  toast("Locked: changes need the token again.");
}

/** Ask for the token; resolves to whether there is one. */
function askForToken() {
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
  redrawPage();
}

async function allowed() {
  return Boolean(store.token) || askForToken();
}

/** Show an error. A token that has become invalid, as after a restart of the server, is dropped. */
function showError(error) {
  if (error.status === 401) lock();
  toast(error.message, "problem");
}

async function add(event) {
  event.preventDefault();
  const query = uploadedQuery(new URLSearchParams(location.hash.split("?")[1] ?? ""));
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
    showError(error);
  } finally {
    button.disabled = false;
  }
}

/** Remove the image of a card after a confirmation. */
export async function removeImage(card) {
  const { run, item, label } = card.dataset;
  if (!store.state.writable || !(await allowed())) return;
  const dialog = $("remove-dialog");
  $("remove-picture").src = picture(run, item, 96);
  $("remove-words").textContent = `The image (${named(label || null)}) will be removed from the gallery. Its file is deleted only if it was added on this page.`;
  dialog.returnValue = "";
  dialog.showModal();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  if (dialog.returnValue !== "remove") return;
  try {
    const answer = await remove(`runs/${run}/items/${item}`);
    runOf(run).images = answer.images;
    toast(`Removed ${named(label || null)}; ${count(answer.images)} images are left.`);
    const grid = card.closest("[data-grid]");
    card.remove();
    grid?.querySelector("a")?.focus();
    if (location.hash === searchAddress(run, item)) location.hash = "#/search";
    await refreshState(false);
  } catch (error) {
    showError(error);
  }
}

async function refreshState(redraw = true) {
  forgetThresholds();
  store.state = await get("state");
  if (redraw) redrawPage();
}
