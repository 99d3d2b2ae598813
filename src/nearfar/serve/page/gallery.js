// The gallery, which loads more as the user scrolls, and the field that finds a class.
import { get, oneRun, runOf } from "./api.js";
import { card, thumbnail } from "./cards.js";
import { $, count, el, failure, message, plural, skeletons } from "./dom.js";

const PAGE = 60;
let pending = new AbortController();
const endObserver = new IntersectionObserver((entries) => { if (entries.some((entry) => entry.isIntersecting)) more(); }, { rootMargin: "600px" });
let more = () => {};

/** All classes with their first images, the images of one class (?class=NAME), or all images (?images). */
export function showGallery(parameters) {
  pending.abort();
  pending = new AbortController();
  const { signal } = pending, run = oneRun(), label = parameters.get("class");
  const grid = $("gallery-grid"), end = $("gallery-end"), about = runOf(run);
  const byClass = label === null && !parameters.has("images") && about.classes > 0;
  let offset = 0, total = Infinity, busy = false;
  $("gallery-title").textContent = label ?? "Gallery";
  const link = (text, address) => el("a", { href: address }, text);
  const sizes = [plural(about.classes, "class", "classes"), plural(about.images, "image")];
  if (label !== null) $("gallery-about").replaceChildren(link("all classes", "#/gallery"));
  else if (byClass) $("gallery-about").replaceChildren(`${sizes[0]} · `, link(sizes[1], "#/gallery?images"));
  else $("gallery-about").replaceChildren(link(sizes[0], "#/gallery"), ` · ${sizes[1]}`);
  grid.replaceChildren();
  end.replaceChildren();

  const nextPage = async () => {
    if (!byClass) {
      const page = await get(`runs/${run}/items`, { label, offset, limit: PAGE }, signal);
      return [page.total, page.items.map((item) => card(run, item))];
    }
    const page = await get(`runs/${run}/classes`, { offset, limit: PAGE }, signal);
    return [page.total, page.classes.map((one) => classCard(run, one))];
  };
  more = async () => {
    if (busy || offset >= total) return;
    busy = true;
    const placeholders = skeletons(offset ? 12 : 24);
    grid.append(...placeholders);
    try {
      const [size, cards] = await nextPage();
      grid.append(...cards);
      total = size;
      offset += cards.length || PAGE;
      if (label !== null) $("gallery-about").replaceChildren(`${plural(total, "image")} · `, link("all classes", "#/gallery"));
      if (!total) end.replaceChildren(empty(label));
      else if (offset >= total) end.replaceChildren(el("p", { class: "faint" }, total > PAGE ? "End of the gallery." : ""));
      else end.replaceChildren(el("button", { type: "button", class: "quiet", onclick: () => more() }, `More (${count(total - offset)})`));
    } catch (error) {
      if (error.name === "AbortError") return;
      total = offset; // stop loading until the user tries again
      end.replaceChildren(failure(error, () => showGallery(parameters)));
    } finally {
      for (const placeholder of placeholders) placeholder.remove();
      busy = false;
    }
    // The observer does not fire again while the end of the list stays visible.
    if (offset < total && end.getBoundingClientRect().top < innerHeight + 600 && !signal.aborted) more();
  };
  endObserver.disconnect();
  endObserver.observe(end);
}

function classCard(run, one) {
  const link = el("a", { href: `#/gallery?class=${encodeURIComponent(one.label)}`, "aria-label": `${one.label}, ${plural(one.images, "image")}` },
    thumbnail(run, one.first), el("span", { class: "label" }, one.label), el("small", {}, plural(one.images, "image")));
  return el("li", { class: "card stack" }, link);
}

/** Stop loading. */
export function leaveGallery() {
  endObserver.disconnect();
  pending.abort();
}

const empty = (label) => (label === null
  ? message("The gallery is empty", "Add images with nearfar index RUN DATA, or search with a picture and add it.")
  : message("There is no such class", `No image of the gallery is called “${label}”.`, el("a", { class: "button", href: "#/gallery" }, "All classes")));

/** The field that finds a class: it suggests names, and Enter opens the class or the first suggestion. */
export function setUpFinding() {
  const field = $("find-class"), suggestions = $("find-classes");
  let last = new AbortController();
  const suggest = async () => {
    last.abort();
    last = new AbortController();
    try {
      const { classes } = await get(`runs/${oneRun()}/classes`, { contains: field.value, limit: 20 }, last.signal);
      suggestions.replaceChildren(...classes.map((one) => el("option", { value: one.label }, plural(one.images, "image"))));
      return classes;
    } catch {
      return [];
    }
  };
  field.addEventListener("input", suggest);
  field.addEventListener("focus", suggest);
  $("find").addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = field.value.trim();
    if (!text) return;
    const classes = await suggest();
    const match = classes.find((one) => one.label === text) ?? classes[0];
    location.hash = `#/gallery?class=${encodeURIComponent(match?.label ?? text)}`;
    field.value = "";
    field.blur();
  });
}
