// Searching: with a picture that is dropped, pasted or chosen, or with an image of the gallery.
import { get, picture, runOf, searched, sendPicture, several, store } from "./api.js";
import { card } from "./cards.js";
import { $, count, el, failure, message, named, plural, skeletons, toast } from "./dom.js";
import { onThreshold, showThresholds, thresholdOf } from "./threshold.js";
import { who } from "./who.js";

const K = 24;
const EXAMPLES = 12;
let far = "0.01"; // the share of strangers that may be named
const pictures = []; // that were given since the page was opened; an address names them by number
let asking = new AbortController();

/** A picture was given: go to its address, which searches. */
export async function give(file) {
  try {
    pictures.push({ file: await readable(file), name: file.name || "a pasted picture" });
    location.hash = `#/search?picture=${pictures.length - 1}`;
  } catch (error) {
    toast(error.message, "problem");
  }
}

/** A type that the server reads; others are converted where the browser can read them, such as HEIC on a telephone. */
async function readable(file) {
  const { types, bytes } = store.state.limits;
  let sent = file;
  if (!types.includes(file.type)) {
    if (file.type && !file.type.startsWith("image/")) throw new Error(`${file.name || "This"} is no picture.`);
    const bitmap = await createImageBitmap(file).catch(() => { throw new Error("This is no picture that can be read: JPEG, PNG, WebP, BMP and GIF can."); });
    const canvas = el("canvas", { width: bitmap.width, height: bitmap.height });
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
    sent = await new Promise((done) => canvas.toBlob(done, "image/png"));
  }
  if (sent.size > bytes) throw new Error(`The picture has ${count(sent.size)} bytes; at most ${count(bytes)} are taken.`);
  return sent;
}

/** The picture that is the query, where it came from outside the gallery. */
export const given = (parameters) => pictures[Number(parameters.get("picture") ?? -1)] ?? null;

export async function showSearch(parameters) {
  asking.abort();
  asking = new AbortController();
  const { signal } = asking;
  const own = given(parameters), item = parameters.get("item"), from = parameters.get("run") ?? "a";
  const runs = searched();
  $("clear").hidden = !own && !item;
  $("drop").classList.toggle("filled", Boolean(own || item));
  $("query").hidden = !own && !item;
  $("add").hidden = !own || !store.state.writable;
  showThresholds(runs);
  if (!own && !item) return showExamples(signal);
  if (own) {
    own.address ??= URL.createObjectURL(own.file);
    showQuery(own.address, own.name, "The picture you gave");
  } else showQuery(picture(from, item, 384), "", "The query");
  const columns = runs.map((run) => column(run));
  $("results").replaceChildren(...columns.map((one) => one.whole));
  $("results").classList.toggle("two", runs.length > 1);
  await Promise.all(runs.map(async (run, place) => {
    try {
      const found = own
        ? await sendPicture(`runs/${run}/search`, { k: K }, own.file, { signal })
        : await get(`runs/${run}/items/${item}/neighbours`, { k: K, of: several() ? from : null }, signal);
      if (found.query) showQuery(picture(from, item, 384), `${named(found.query.label)} · ${found.query.name}`, `The query: ${named(found.query.label)}`);
      columns[place].fill(found);
      if (own && found.neighbours.some((one) => one.label !== null)) await identify(run, own, columns[place], signal);
    } catch (error) {
      if (error.name !== "AbortError") columns[place].fail(error, () => showSearch(parameters));
    }
  }));
}

/** Above what was found, who it is; a search is good without it. */
async function identify(run, own, column, signal) {
  const found = await sendPicture(`runs/${run}/identify`, { far }, own.file, { signal }).catch((error) => { if (error.name === "AbortError") throw error; });
  if (!found) return;
  column.tell(who(found, far, async (chosen) => {
    far = chosen;
    await identify(run, own, column, signal).catch((error) => { if (error.name !== "AbortError") throw error; });
    column.whole.querySelector(".who select")?.focus();
  }));
}

function showQuery(address, words, alternative) {
  const image = $("query-picture");
  if (image.getAttribute("src") !== address) image.src = address;
  image.alt = alternative;
  $("query-name").textContent = words;
}

/** What one run found, to be filled. */
function column(run) {
  const about = runOf(run);
  const verdict = el("p", { class: "verdict" }, "Searching …");
  const times = el("p", { class: "faint times" });
  const list = el("ol", { class: "grid found", "data-grid": true }, ...skeletons(12));
  const head = el("h2", { class: several() ? "" : "unseen" }, several() ? el("span", { class: "key" }, run.toUpperCase()) : null, `${about.name} `, el("small", { class: "faint" }, about.loss));
  const whole = el("section", { class: "column", "data-run": run, "aria-busy": "true" }, head, verdict, times, list);
  return {
    whole,
    fill(found) {
      whole.found = found;
      whole.removeAttribute("aria-busy");
      const label = found.query?.label ?? null;
      list.replaceChildren(...found.neighbours.map((one) => card(run, one, { similarity: one.similarity, same: label !== null && one.label === label })));
      if (!found.neighbours.length) list.replaceWith(message("The gallery is empty", "Add a picture to it, or make it anew with nearfar index."));
      const model = found.model_ms ? `embedded in ${found.model_ms.toFixed(0)} ms, ` : "";
      times.textContent = `${model}searched ${plural(about.images, "image")} in ${found.search_ms.toFixed(1)} ms`;
      judge(whole);
    },
    tell(answer) {
      whole.querySelector(".who")?.remove();
      head.after(answer);
    },
    fail(error, again) {
      whole.removeAttribute("aria-busy");
      verdict.textContent = "";
      list.replaceWith(failure(error, again));
    },
  };
}

/** Match or no match, at the threshold that is chosen. */
function judge(column) {
  const { found } = column, run = column.dataset.run, threshold = thresholdOf(run);
  if (!found) return;
  const verdict = column.querySelector(".verdict");
  column.style.setProperty("--t", Math.max(0, Math.min(1, threshold ?? 2)));
  column.classList.toggle("judged", threshold !== null);
  for (const one of column.querySelectorAll(".card")) {
    one.classList.toggle("match", threshold !== null && Number(one.dataset.similarity) >= threshold);
    one.classList.toggle("apart", threshold !== null && Number(one.dataset.similarity) < threshold);
  }
  const first = found.neighbours[0];
  if (!first) verdict.replaceChildren();
  else if (threshold === null) verdict.replaceChildren(el("b", {}, `Nearest: ${named(first.label)}`), ` at ${first.similarity.toFixed(3)}. There is no threshold to tell a match.`);
  else {
    const matches = found.neighbours.filter((one) => one.similarity >= threshold).length;
    const all = matches === found.neighbours.length ? "all" : count(matches);
    const sign = el("b", { class: matches ? "yes" : "no" }, matches ? `Match: ${named(first.label)}` : "No match");
    verdict.replaceChildren(sign, matches
      ? ` · ${all} of the ${found.neighbours.length} nearest reach ${threshold.toFixed(3)}`
      : ` · the nearest, ${named(first.label)}, is at ${first.similarity.toFixed(3)}, below ${threshold.toFixed(3)}`);
  }
  if (first && found.query?.label) {
    const own = found.neighbours.filter((one) => one.label === found.query.label).length;
    verdict.append(el("span", { class: "faint own" }, `● ${own} of ${found.neighbours.length} are of its class, ${found.query.label}`));
  }
}

onThreshold((run) => { const column = $("results").querySelector(`.column[data-run="${run}"]`); if (column) judge(column); });

/** Nothing to search with yet: some images of the gallery, to begin with. */
async function showExamples(signal) {
  const run = searched()[0], total = runOf(run).images;
  const results = $("results");
  results.classList.remove("two");
  if (!total) {
    results.replaceChildren(message("The gallery is empty", "Search will find nothing before images are added: nearfar index RUN DATA does."));
    return;
  }
  const list = el("ul", { class: "grid", "data-grid": true }, ...skeletons(EXAMPLES));
  results.replaceChildren(message("What does it look like?", `Give a picture to find the nearest of ${plural(total, "image")} of ${plural(runOf(run).classes, "class", "classes")}. Or begin with one of these:`), list);
  const places = Array.from({ length: Math.min(EXAMPLES, total) }, (_, i) => Math.floor((i + Math.random()) * total / Math.min(EXAMPLES, total)));
  try {
    const parts = await Promise.all(places.map((offset) => get(`runs/${run}/items`, { offset, limit: 1 }, signal)));
    list.replaceChildren(...parts.flatMap((part) => part.items).map((item) => card(run, item)));
  } catch (error) {
    if (error.name !== "AbortError") results.replaceChildren(failure(error, () => showExamples(signal)));
  }
}
