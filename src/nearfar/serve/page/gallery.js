// The gallery, class by class, more of it as one scrolls; and finding a class.
import { get, oneRun, runOf } from "./api.js";
import { card, shown } from "./cards.js";
import { $, count, el, failure, message, plural, skeletons } from "./dom.js";

const PAGE = 60;
let asking = new AbortController();
const seen = new IntersectionObserver((entries) => { if (entries.some((entry) => entry.isIntersecting)) more(); }, { rootMargin: "600px" });
let more = () => {};

/** All classes, each by its first image; the images of one class (?class=NAME); or all images (?images). */
export function showGallery(parameters) {
  asking.abort();
  asking = new AbortController();
  const { signal } = asking, run = oneRun(), label = parameters.get("class");
  const grid = $("gallery-grid"), end = $("gallery-end"), about = runOf(run);
  const byClass = label === null && !parameters.has("images") && about.classes > 0;
  let offset = 0, total = Infinity, busy = false;
  $("gallery-title").textContent = label ?? "Gallery";
  const link = (words, address) => el("a", { href: address }, words);
  const sizes = [plural(about.classes, "class", "classes"), plural(about.images, "image")];
  if (label !== null) $("gallery-about").replaceChildren(link("all classes", "#/gallery"));
  else if (byClass) $("gallery-about").replaceChildren(`${sizes[0]} · `, link(sizes[1], "#/gallery?images"));
  else $("gallery-about").replaceChildren(link(sizes[0], "#/gallery"), ` · ${sizes[1]}`);
  grid.replaceChildren();
  end.replaceChildren();

  const ask = async () => {
    if (!byClass) {
      const part = await get(`runs/${run}/items`, { label, offset, limit: PAGE }, signal);
      return [part.total, part.items.map((item) => card(run, item))];
    }
    const part = await get(`runs/${run}/classes`, { offset, limit: PAGE }, signal);
    return [part.total, part.classes.map((one) => classCard(run, one))];
  };
  more = async () => {
    if (busy || offset >= total) return;
    busy = true;
    const waiting = skeletons(offset ? 12 : 24);
    grid.append(...waiting);
    try {
      const [all, cards] = await ask();
      grid.append(...cards);
      total = all;
      offset += cards.length || PAGE;
      if (label !== null) $("gallery-about").replaceChildren(`${plural(total, "image")} · `, link("all classes", "#/gallery"));
      if (!total) end.replaceChildren(empty(label));
      else if (offset >= total) end.replaceChildren(el("p", { class: "faint" }, total > PAGE ? "That is all." : ""));
      else end.replaceChildren(el("button", { type: "button", class: "quiet", onclick: () => more() }, `More (${count(total - offset)})`));
    } catch (error) {
      if (error.name === "AbortError") return;
      total = offset; // until asked for again
      end.replaceChildren(failure(error, () => showGallery(parameters)));
    } finally {
      for (const one of waiting) one.remove();
      busy = false;
    }
    // Where a screen is larger than a page, or was scrolled past it, the observer stays silent.
    if (offset < total && end.getBoundingClientRect().top < innerHeight + 600 && !signal.aborted) more();
  };
  seen.disconnect();
  seen.observe(end);
}

function classCard(run, one) {
  const link = el("a", { href: `#/gallery?class=${encodeURIComponent(one.label)}`, "aria-label": `${one.label}, ${plural(one.images, "image")}` },
    shown(run, one.first), el("span", { class: "label" }, one.label), el("small", {}, plural(one.images, "image")));
  return el("li", { class: "card stack" }, link);
}

/** Nothing is loaded while the gallery is not to be seen. */
export function leaveGallery() {
  seen.disconnect();
  asking.abort();
}

const empty = (label) => (label === null
  ? message("The gallery is empty", "Fill it with nearfar index RUN DATA, or add a picture after searching with it.")
  : message("There is no such class", `No image of the gallery is called “${label}”.`, el("a", { class: "button", href: "#/gallery" }, "All classes")));

/** The field that finds a class: names as one types, and on Enter the class, or the first that is offered. */
export function setUpFinding() {
  const field = $("find-class"), offered = $("find-classes");
  let last = new AbortController();
  const offer = async () => {
    last.abort();
    last = new AbortController();
    try {
      const found = await get(`runs/${oneRun()}/classes`, { contains: field.value, limit: 20 }, last.signal);
      offered.replaceChildren(...found.classes.map((one) => el("option", { value: one.label }, plural(one.images, "image"))));
      return found.classes;
    } catch {
      return [];
    }
  };
  field.addEventListener("input", offer);
  field.addEventListener("focus", offer);
  $("find").addEventListener("submit", async (event) => {
    event.preventDefault();
    const wanted = field.value.trim();
    if (!wanted) return;
    const classes = await offer();
    const exact = classes.find((one) => one.label === wanted) ?? classes[0];
    location.hash = `#/gallery?class=${encodeURIComponent(exact?.label ?? wanted)}`;
    field.value = "";
    field.blur();
  });
}
