// Pictures of the gallery as cards, and going from one to the next by the arrow keys.
import { picture, store } from "./api.js";
import { el, named } from "./dom.js";

export const searchAddress = (run, item) => `#/search?run=${run}&item=${item}`;

/** The picture of an item; one that cannot be read says so. */
export function shown(run, item, side = 192) {
  const frame = el("span", { class: "frame" });
  const image = el("img", { src: picture(run, item.item, side), alt: "", loading: "lazy", decoding: "async", draggable: "false" });
  image.addEventListener("error", () => frame.replaceChildren(el("span", { class: "missing" }, "no picture")));
  frame.append(image);
  return frame;
}

/**
 * A card: a link that searches with the image.
 * mark: "right" or "wrong", where it is known; similarity: of what was found.
 */
export function card(run, item, { similarity = null, mark = "", same = false } = {}) {
  const words = [named(item.label)];
  if (similarity !== null) words.push(`similarity ${similarity.toFixed(3)}`);
  if (mark) words.push(mark);
  words.push("search with it");
  const link = el(
    "a",
    { href: searchAddress(run, item.item), "aria-label": words.join(", "), title: item.name },
    shown(run, item),
    el("span", { class: `label${same ? " same" : ""}${item.label === null ? " none" : ""}` }, named(item.label)),
    similarity === null ? null : el("span", { class: "score" }, el("span", { class: "bar" }), el("b", {}, similarity.toFixed(3))),
  );
  const made = el("li", { class: `card ${mark}`, "data-run": run, "data-item": item.item, "data-label": item.label ?? "" }, link);
  if (similarity !== null) {
    made.dataset.similarity = similarity;
    made.style.setProperty("--s", Math.max(0, Math.min(1, similarity)));
  }
  if (store.state.writable && store.token) {
    made.append(el("button", { type: "button", class: "take", "data-take": true, "aria-label": `Take ${named(item.label)} away`, title: "Take it out of the gallery" }, "×"));
  }
  return made;
}

/** Arrow keys, Home and End inside a grid. */
export function moveInGrid(event) {
  const grid = event.target.closest("[data-grid]");
  if (!grid || event.target.matches("input")) return;
  const links = [...grid.querySelectorAll(".card > a")];
  const here = links.indexOf(event.target.closest(".card")?.querySelector("a"));
  if (here < 0) return;
  const goal = target(links, here, event.key);
  if (goal === null) return;
  event.preventDefault();
  links[goal]?.focus();
}

function target(links, here, key) {
  if (key === "Home") return 0;
  if (key === "End") return links.length - 1;
  if (key === "ArrowRight") return Math.min(here + 1, links.length - 1);
  if (key === "ArrowLeft") return Math.max(here - 1, 0);
  if (key !== "ArrowDown" && key !== "ArrowUp") return null;
  const box = (link) => link.getBoundingClientRect();
  const from = box(links[here]);
  const down = key === "ArrowDown";
  let best = here, distance = Infinity;
  links.forEach((link, place) => {
    const to = box(link);
    const away = down ? to.top - from.top : from.top - to.top;
    if (away < 4) return;
    const far = away * 1000 + Math.abs(to.left - from.left);
    if (far < distance) [best, distance] = [place, far];
  });
  return best;
}
