// Searching with an uploaded picture or with an image of the gallery.
import { get, picture, runOf, searched, sendPicture, several, store } from "./api.js";
import { card } from "./cards.js";
import { $, count, el, failure, message, named, plural, skeletons, toast } from "./dom.js";
import { onThreshold, showThresholds, thresholdOf } from "./threshold.js";
import { identificationPanel } from "./identification.js";

const K = 24;
const EXAMPLES = 12;
let far = "0.01"; // the false accept rate of identification
const uploads = []; // since the page was opened; addresses refer to them by number
let pending = new AbortController();

/** Go to the address of an uploaded picture, which starts the search. */
export async function searchWith(file) {
  try {
    uploads.push({ file: await converted(file), name: file.name || "a pasted picture" });
    location.hash = `#/search?picture=${uploads.length - 1}`;
  } catch (error) {
    toast(error.message, "problem");
  }
}

/** The file in a type that the server reads. The browser converts other types that it can read, such as HEIC. */
async function converted(file) {
  const { types, bytes } = store.state.limits;
  let sent = file;
  if (!types.includes(file.type)) {
    if (file.type && !file.type.startsWith("image/")) throw new Error(`${file.name || "This file"} is not a picture.`);
    const bitmap = await createImageBitmap(file).catch(() => { throw new Error("This picture cannot be read. Use JPEG, PNG, WebP, BMP or GIF."); });
    const canvas = el("canvas", { width: bitmap.width, height: bitmap.height });
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
    sent = await new Promise((done) => canvas.toBlob(done, "image/png"));
  }
  if (sent.size > bytes) throw new Error(`The picture has ${count(sent.size)} bytes; the limit is ${count(bytes)}.`);
  return sent;
}

/** The uploaded picture that is the query, or null. */
export const uploadedQuery = (parameters) => uploads[Number(parameters.get("picture") ?? -1)] ?? null;

export async function showSearch(parameters) {
  pending.abort();
  pending = new AbortController();
  const { signal } = pending;
  const upload = uploadedQuery(parameters), item = parameters.get("item"), from = parameters.get("run") ?? "a";
  const runs = searched();
  $("clear").hidden = !upload && !item;
  $("drop").classList.toggle("filled", Boolean(upload || item));
  $("query").hidden = !upload && !item;
  $("add").hidden = !upload || !store.state.writable;
  showThresholds(runs);
  if (!upload && !item) return showExamples(signal);
  if (upload) {
    upload.address ??= URL.createObjectURL(upload.file);
    showQuery(upload.address, upload.name, "Your picture");
  } else showQuery(picture(from, item, 384), "", "The query");
  const columns = runs.map((run) => column(run));
  $("results").replaceChildren(...columns.map((one) => one.whole));
  $("results").classList.toggle("two", runs.length > 1);
  await Promise.all(runs.map(async (run, index) => {
    try {
      const found = upload
        ? await sendPicture(`runs/${run}/search`, { k: K }, upload.file, { signal })
        : await get(`runs/${run}/items/${item}/neighbours`, { k: K, of: several() ? from : null }, signal);
      if (found.query) showQuery(picture(from, item, 384), `${named(found.query.label)} · ${found.query.name}`, `The query: ${named(found.query.label)}`);
      columns[index].fill(found);
      if (upload && found.neighbours.some((one) => one.label !== null)) await identify(run, upload, columns[index], signal);
    } catch (error) {
      if (error.name !== "AbortError") columns[index].fail(error, () => showSearch(parameters));
    }
  }));
}

/** Show the identification above the neighbours; its errors are ignored, because the search works without it. */
async function identify(run, upload, column, signal) {
  const answer = await sendPicture(`runs/${run}/identify`, { far }, upload.file, { signal }).catch((error) => { if (error.name === "AbortError") throw error; });
  if (!answer) return;
  column.showIdentification(identificationPanel(answer, far, async (chosen) => {
    far = chosen;
    await identify(run, upload, column, signal).catch((error) => { if (error.name !== "AbortError") throw error; });
    column.whole.querySelector(".who select")?.focus();
  }));
}

function showQuery(address, name, alternative) {
  const image = $("query-picture");
  if (image.getAttribute("src") !== address) image.src = address;
  image.alt = alternative;
  $("query-name").textContent = name;
}

/** The column of one run's results. */
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
      if (!found.neighbours.length) list.replaceWith(message("The gallery is empty", "Add a picture, or build the index again with nearfar index."));
      const model = found.model_ms ? `embedded in ${found.model_ms.toFixed(0)} ms, ` : "";
      times.textContent = `${model}searched ${plural(about.images, "image")} in ${found.search_ms.toFixed(1)} ms`;
      judge(whole);
    },
    showIdentification(panel) {
      whole.querySelector(".who")?.remove();
      head.after(panel);
    },
    fail(error, again) {
      whole.removeAttribute("aria-busy");
      verdict.textContent = "";
      list.replaceWith(failure(error, again));
    },
  };
}

/** Show the matches at the chosen threshold. */
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
  else if (threshold === null) verdict.replaceChildren(el("b", {}, `Nearest: ${named(first.label)}`), ` at ${first.similarity.toFixed(3)}. There is no calibrated threshold for a match.`);
  else {
    const matches = found.neighbours.filter((one) => one.similarity >= threshold).length;
    const all = matches === found.neighbours.length ? "all" : count(matches);
    const sign = el("b", { class: matches ? "yes" : "no" }, matches ? `Match: ${named(first.label)}` : "No match");
    verdict.replaceChildren(sign, matches
      ? ` · ${all} of the ${found.neighbours.length} nearest reach ${threshold.toFixed(3)}`
      : ` · the nearest, ${named(first.label)}, is at ${first.similarity.toFixed(3)}, below ${threshold.toFixed(3)}`);
  }
  if (first && found.query?.label) {
    const same = found.neighbours.filter((one) => one.label === found.query.label).length;
    verdict.append(el("span", { class: "faint same-class" }, `● ${same} of ${found.neighbours.length} are of its class, ${found.query.label}`));
  }
}

onThreshold((run) => { const column = $("results").querySelector(`.column[data-run="${run}"]`); if (column) judge(column); });

/** Without a query, offer some images of the gallery. */
async function showExamples(signal) {
  const run = searched()[0], total = runOf(run).images;
  const results = $("results");
  results.classList.remove("two");
  if (!total) {
    results.replaceChildren(message("The gallery is empty", "Add images with nearfar index RUN DATA."));
    return;
  }
  const list = el("ul", { class: "grid", "data-grid": true }, ...skeletons(EXAMPLES));
  results.replaceChildren(message("Search by example", `Choose a picture to find the nearest of ${plural(total, "image")} of ${plural(runOf(run).classes, "class", "classes")}. Or start with one of these:`), list);
  const offsets = Array.from({ length: Math.min(EXAMPLES, total) }, (_, i) => Math.floor((i + Math.random()) * total / Math.min(EXAMPLES, total)));
  try {
    const parts = await Promise.all(offsets.map((offset) => get(`runs/${run}/items`, { offset, limit: 1 }, signal)));
    list.replaceChildren(...parts.flatMap((part) => part.items).map((item) => card(run, item)));
  } catch (error) {
    if (error.name !== "AbortError") results.replaceChildren(failure(error, () => showExamples(signal)));
  }
}
