// The model's mistakes: the worst queries and the confused classes.
import { get, oneRun } from "./api.js";
import { card } from "./cards.js";
import { $, count, el, failure, message, percent, plural, skeletons } from "./dom.js";

let pending = new AbortController();

export async function showMistakes() {
  pending.abort();
  pending = new AbortController();
  const { signal } = pending, run = oneRun(), body = $("mistakes-body");
  $("mistakes-about").textContent = "";
  body.replaceChildren(el("p", { class: "faint" }, "Comparing every image with all others …"), el("ul", { class: "grid" }, ...skeletons(9)));
  let found;
  try {
    found = await get(`runs/${run}/mistakes`, {}, signal);
  } catch (error) {
    if (error.name !== "AbortError") body.replaceChildren(failure(error, showMistakes));
    return;
  }
  const drawn = found.drawn ? " drawn at random" : "";
  $("mistakes-about").textContent = `${found.evaluation ? "The run’s test images" : "All images with a label"}, each compared with all others. For ${count(found.right)} of ${plural(found.queries, "query", "queries")}${drawn} (${percent(found.right / found.queries)}), the nearest image is of the same class.`;
  if (!found.worst.length) {
    body.replaceChildren(message("No mistakes", `The nearest image of every query${drawn} is of the same class.`));
    return;
  }
  const tabs = [["worst", "Worst queries", worst(run, found)], ["confused", "Confused classes", confused(run, found)]];
  const panels = tabs.map(([name, , content]) => el("div", { id: `panel-${name}`, role: "tabpanel", "aria-labelledby": `tab-${name}` }, ...content));
  const buttons = tabs.map(([name, words]) => el("button", { id: `tab-${name}`, type: "button", role: "tab", "aria-controls": `panel-${name}` }, words));
  const choose = (index, focus) => {
    sessionStorage.setItem("nearfar-mistakes", index);
    panels.forEach((panel, i) => { panel.hidden = i !== index; });
    buttons.forEach((button, i) => { button.setAttribute("aria-selected", i === index); button.tabIndex = i === index ? 0 : -1; });
    if (focus) buttons[index].focus();
  };
  buttons.forEach((button, index) => {
    button.addEventListener("click", () => choose(index));
    button.addEventListener("keydown", (event) => { if (event.key === "ArrowRight" || event.key === "ArrowLeft") choose(1 - index, true); });
  });
  body.replaceChildren(el("div", { class: "tabs", role: "tablist", "aria-label": "Mistakes" }, ...buttons), ...panels);
  choose(sessionStorage.getItem("nearfar-mistakes") === "1" ? 1 : 0);
}

function worst(run, found) {
  const rows = found.worst.map((one) => {
    const query = card(run, one.query);
    query.classList.add("strip-query");
    const list = one.found.map((hit) => card(run, hit, { similarity: hit.similarity, mark: hit.right ? "right" : "wrong" }));
    return el("li", {}, el("ul", { class: "strip", "data-grid": true }, query, ...list));
  });
  return [
    el("p", { class: "faint" }, "The first picture is the query, followed by its nearest images. ✓ and a solid border mark its class, ✗ and a dashed border another class. Each class has at most one query."),
    el("ol", { class: "worst" }, ...rows),
  ];
}

function confused(run, found) {
  const pairs = found.confused.map((pair) => {
    const share = pair.mistaken / pair.queries;
    return el("li", { class: "pair panel" },
      el("ul", { class: "strip", "data-grid": true }, card(run, pair.query), card(run, pair.found, { mark: "wrong" })),
      el("p", {}, el("b", {}, pair.first), " and ", el("b", {}, pair.second)),
      el("span", { class: "bar", vars: { "--s": share } }),
      el("p", { class: "faint" }, `${count(pair.mistaken)} of ${plural(pair.queries, "query", "queries")} (${percent(share, 0)}) are nearest to the other class`));
  });
  return [
    el("p", { class: "faint" }, "Pairs of classes, sorted by how often the nearest image of a query is of the other class, each with its most confident mistake. If two pictures look the same to you, a label may be wrong."),
    el("ul", { class: "pairs" }, ...pairs),
  ];
}
