// The page: routing, the choice of the run, keyboard shortcuts, light and dark themes.
import { get, oneRun, store, several } from "./api.js";
import { moveInGrid } from "./cards.js";
import { $, count, el, failure, percent, plural } from "./dom.js";
import { leaveGallery, setUpFinding, showGallery } from "./gallery.js";
import { leaveMap, showMap } from "./map.js";
import { showMistakes } from "./mistakes.js";
import { searchWith, showSearch } from "./search.js";
import { removeImage, setUpWriting } from "./write.js";

const VIEWS = {
  search: { show: showSearch, leave() {} },
  gallery: { show: showGallery, leave: leaveGallery },
  mistakes: { show: showMistakes, leave() {} },
  map: { show: showMap, leave: leaveMap },
};
let current = null;

/** Show the view of the address: #/VIEW?parameters. */
function route() {
  const [, path, query] = location.hash.match(/^#\/?([^?]*)\??(.*)$/) ?? [];
  const view = path in VIEWS ? path : "search";
  const parameters = new URLSearchParams(query);
  if (current !== null && current !== view) {
    VIEWS[current].leave();
    scrollTo(0, 0);
  }
  current = view;
  for (const name of Object.keys(VIEWS)) $(`view-${name}`).hidden = name !== view;
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${view[0].toUpperCase()}${view.slice(1)} · nearfar`;
  showRuns(view);
  VIEWS[view].show(parameters);
}

/** The served run, or a choice between two. */
function showRuns(view) {
  const summary = (run) => {
    const recall = run.metrics.recall_at_1;
    return `${run.loss} · ${plural(run.images, "image")}${recall === null ? "" : ` · recall@1 ${percent(recall)}`}`;
  };
  if (!several()) {
    const [run] = store.state.runs;
    $("runs").replaceChildren(el("p", {}, el("b", {}, run.name), el("span", { class: "faint" }, ` ${summary(run)}`)));
    return;
  }
  const choices = store.state.runs.map((run) => [run.key, el("span", {}, el("span", { class: "key" }, run.key.toUpperCase()), el("b", {}, run.name), el("small", {}, summary(run)))]);
  if (view === "search") choices.push(["both", el("span", {}, el("b", {}, "Side by side"), el("small", {}, "the same query in both runs"))]);
  const shown = view === "search" ? store.shown : oneRun();
  const buttons = choices.map(([key, content]) => el("button", { type: "button", "aria-pressed": String(key === shown), onclick: () => { store.shown = key; route(); } }, content));
  $("runs").replaceChildren(el("div", { class: "choice", role: "group", "aria-label": "Run" }, ...buttons));
}

// Choosing, pasting or dropping a picture

function setUpUploads() {
  $("file").addEventListener("change", () => { if ($("file").files[0]) searchWith($("file").files[0]); $("file").value = ""; });
  $("clear").addEventListener("click", () => { location.hash = "#/search"; });
  document.addEventListener("paste", (event) => {
    const file = [...event.clipboardData.files][0];
    if (file) { event.preventDefault(); searchWith(file); }
  });
  let depth = 0; // entering an inner element also fires dragleave on the outer one
  const curtain = (open) => { $("curtain").hidden = !open; };
  const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
  document.addEventListener("dragenter", (event) => { if (carriesFiles(event)) { depth += 1; curtain(true); } });
  document.addEventListener("dragleave", (event) => { if (carriesFiles(event) && --depth <= 0) { depth = 0; curtain(false); } });
  document.addEventListener("dragover", (event) => { if (carriesFiles(event)) event.preventDefault(); });
  document.addEventListener("drop", (event) => {
    depth = 0;
    curtain(false);
    const file = event.dataTransfer?.files[0];
    if (file) { event.preventDefault(); searchWith(file); }
  });
}

// Keyboard shortcuts

function setUpKeys() {
  const dialog = $("keys-dialog");
  $("keys").addEventListener("click", () => dialog.showModal());
  document.addEventListener("keydown", (event) => {
    moveInGrid(event);
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const typing = event.target.matches("input:not([type=range]):not([type=file]), textarea");
    if (event.key === "Escape") {
      if (typing) event.target.blur();
      else if (current === "search") location.hash = "#/search";
      return;
    }
    if (typing) return;
    const focused = event.target.closest?.(".card[data-item]");
    if (event.key === "/") { event.preventDefault(); $("find-class").focus(); }
    else if (event.key === "?") dialog.showModal();
    else if (event.key === "Delete" && focused) removeImage(focused);
    else if ("1234".includes(event.key) && event.key.length === 1) location.hash = `#/${Object.keys(VIEWS)[Number(event.key) - 1]}`;
  });
}

// Themes

const THEMES = ["auto", "light", "dark"];
function setUpTheme() {
  const apply = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    const label = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" }[theme];
    $("theme").setAttribute("aria-label", label);
    $("theme").title = label;
    dispatchEvent(new Event("themechange"));
  };
  const stored = () => (THEMES.includes(localStorage.getItem("nearfar-theme")) ? localStorage.getItem("nearfar-theme") : "auto");
  $("theme").addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(stored()) + 1) % THEMES.length];
    localStorage.setItem("nearfar-theme", next);
    apply(next);
  });
  apply(stored());
}

async function start() {
  setUpTheme();
  try {
    store.state = await get("state");
  } catch (error) {
    $("runs").replaceChildren(failure(error, () => location.reload()));
    return;
  }
  if (several()) store.shown = "both";
  setUpUploads();
  setUpKeys();
  setUpFinding();
  await setUpWriting(route);
  addEventListener("hashchange", route);
  route();
  document.documentElement.dataset.ready = count(store.state.runs.length);
}

start();
