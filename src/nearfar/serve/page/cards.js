// Cards of the gallery's pictures, and moving between them with the arrow keys.
import { picture, store } from "./api.js";
import { el, named } from "./dom.js";

export const searchAddress = (run, item) => `#/search?run=${run}&item=${item}`;

/** The picture of an item, with a text if it cannot be loaded. */
export function thumbnail(run, item, side = 192) {
  const frame = el("span", { class: "frame" });
  const image = el("img", { src: picture(run, item.item, side), alt: "", loading: "lazy", decoding: "async", draggable: "false" });
  image.addEventListener("error", () => frame.replaceChildren(el("span", { class: "missing" }, "no picture")));
  frame.append(image);
  return frame;
}

/**
 * A card: a link that searches with the image.
 * mark: "right", "wrong" or ""; similarity: to the query.
 */
export function card(run, item, { similarity = null, mark = "", same = false } = {}) {
  const words = [named(item.label)];
  if (similarity !== null) words.push(`similarity ${similarity.toFixed(3)}`);
  if (mark) words.push(mark);
  words.push("search with this image");
  const link = el(
    "a",
    { href: searchAddress(run, item.item), "aria-label": words.join(", "), title: item.name },
    thumbnail(run, item),
    el("span", { class: `label${same ? " same" : ""}${item.label === null ? " none" : ""}` }, named(item.label)),
    similarity === null ? null : el("span", { class: "score" }, el("span", { class: "bar" }), el("b", {}, similarity.toFixed(3))),
  );
  const entry = el("li", { class: `card ${mark}`, "data-run": run, "data-item": item.item, "data-label": item.label ?? "" }, link);
  if (similarity !== null) {
    entry.dataset.similarity = similarity;
    entry.style.setProperty("--s", Math.max(0, Math.min(1, similarity)));
  }
  if (store.state.writable && store.token) {
    entry.append(el("button", { type: "button", class: "remove", "data-remove": true, "aria-label": `Remove ${named(item.label)}`, title: "Remove from the gallery" }, "×"));
  }
  return entry;
}

/** Arrow keys, Home and End inside a grid. */
export function moveInGrid(event) {
  const grid = event.target.closest("[data-grid]");
  if (!grid || event.target.matches("input")) return;
  const links = [...grid.querySelectorAll(".card > a")];
  const current = links.indexOf(event.target.closest(".card")?.querySelector("a"));
  if (current < 0) return;
  const next = target(links, current, event.key);
  if (next === null) return;
  event.preventDefault();
  links[next]?.focus();
}

function target(links, current, key) {
  if (key === "Home") return 0;
  if (key === "End") return links.length - 1;
  if (key === "ArrowRight") return Math.min(current + 1, links.length - 1);
  if (key === "ArrowLeft") return Math.max(current - 1, 0);
  if (key !== "ArrowDown" && key !== "ArrowUp") return null;
  const box = (link) => link.getBoundingClientRect();
  const from = box(links[current]);
  const down = key === "ArrowDown";
  let best = current, smallest = Infinity;
  links.forEach((link, index) => {
    const to = box(link);
    const rows = down ? to.top - from.top : from.top - to.top;
    if (rows < 4) return;
    const distance = rows * 1000 + Math.abs(to.left - from.left);
    if (distance < smallest) [best, smallest] = [index, distance];
  });
  return best;
}
