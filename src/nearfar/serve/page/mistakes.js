// What the model gets wrong: the worst queries, and the classes that are taken for each other.
import { get, oneRun } from "./api.js";
import { card } from "./cards.js";
import { $, count, el, failure, message, percent, plural, skeletons } from "./dom.js";

let asking = new AbortController();

export async function showMistakes() {
  asking.abort();
  asking = new AbortController();
  const { signal } = asking, run = oneRun(), body = $("mistakes-body");
  $("mistakes-about").textContent = "";
  body.replaceChildren(el("p", { class: "faint" }, "Searching for every image among all others …"), el("ul", { class: "grid" }, ...skeletons(9)));
  let found;
  try {
    found = await get(`runs/${run}/mistakes`, {}, signal);
  } catch (error) {
    if (error.name !== "AbortError") body.replaceChildren(failure(error, showMistakes));
    return;
  }
  const drawn = found.drawn ? " drawn at random" : "";
  $("mistakes-about").textContent = `${found.evaluation ? "The run’s test images" : "All images that have a label"}, each searched for among all others. Of ${plural(found.queries, "query", "queries")}${drawn}, ${count(found.right)} (${percent(found.right / found.queries)}) find their class first.`;
  if (!found.worst.length) {
    body.replaceChildren(message("No mistakes", `The nearest image of every query${drawn} is of its class.`));
    return;
  }
  const tabs = [["worst", "Worst queries", worst(run, found)], ["confused", "Confused classes", confused(run, found)]];
  const panels = tabs.map(([name, , content]) => el("div", { id: `panel-${name}`, role: "tabpanel", "aria-labelledby": `tab-${name}` }, ...content));
  const buttons = tabs.map(([name, words]) => el("button", { id: `tab-${name}`, type: "button", role: "tab", "aria-controls": `panel-${name}` }, words));
  const choose = (place, focus) => {
    sessionStorage.setItem("nearfar-mistakes", place);
    panels.forEach((panel, i) => { panel.hidden = i !== place; });
    buttons.forEach((button, i) => { button.setAttribute("aria-selected", i === place); button.tabIndex = i === place ? 0 : -1; });
    if (focus) buttons[place].focus();
  };
  buttons.forEach((button, place) => {
    button.addEventListener("click", () => choose(place));
    button.addEventListener("keydown", (event) => { if (event.key === "ArrowRight" || event.key === "ArrowLeft") choose(1 - place, true); });
  });
  body.replaceChildren(el("div", { class: "tabs", role: "tablist", "aria-label": "Mistakes" }, ...buttons), ...panels);
  choose(sessionStorage.getItem("nearfar-mistakes") === "1" ? 1 : 0);
}

function worst(run, found) {
  const rows = found.worst.map((one) => {
    const query = card(run, one.query);
    query.classList.add("asked");
    const list = one.found.map((hit) => card(run, hit, { similarity: hit.similarity, mark: hit.right ? "right" : "wrong" }));
    return el("li", {}, el("ul", { class: "strip", "data-grid": true }, query, ...list));
  });
  return [
    el("p", { class: "faint" }, "The first picture is the query; then what it finds. ✓ and a solid border: its class; ✗ and a dashed border: another. At most one query of each class."),
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
      el("p", { class: "faint" }, `${count(pair.mistaken)} of ${plural(pair.queries, "query", "queries")} (${percent(share, 0)}) find the other first`));
  });
  return [
    el("p", { class: "faint" }, "Pairs of classes by how often a query of one finds an image of the other first, each with its most confident mistake. What looks the same to you too may be a wrong label."),
    el("ul", { class: "pairs" }, ...pairs),
  ];
}
