// The threshold slider: the similarity from which two images count as the same, with precision and recall.
import { get, runOf } from "./api.js";
import { $, count, el, percent, svg } from "./dom.js";

const WIDTH = 280, HEIGHT = 96;
const curves = new Map(); // by run: the response of /thresholds
const chosen = new Map(); // by run: the chosen threshold
let listener = () => {};

export const thresholdOf = (run) => chosen.get(run) ?? runOf(run).threshold;
export const onThreshold = (call) => { listener = call; };
/** Called when the gallery has changed. */
export const forgetThresholds = () => curves.clear();

/** Show a slider for every searched run. */
export async function showThresholds(runs) {
  const box = $("threshold");
  box.hidden = false;
  box.replaceChildren(...runs.map((run) => el("div", { "data-run": run }, el("p", { class: "faint" }, "Measuring thresholds …"))));
  await Promise.all(runs.map(async (run) => {
    const part = box.querySelector(`[data-run="${run}"]`);
    try {
      if (!curves.has(run)) curves.set(run, await get(`runs/${run}/thresholds`));
      if (part.isConnected) part.replaceChildren(...slider(run, curves.get(run), runs.length > 1));
    } catch (error) {
      part.replaceChildren(el("h2", {}, "Threshold"), el("p", { class: "faint" }, error.message));
    }
  }));
}

const nearest = (values, target) => values.reduce((best, value, index) => (Math.abs(value - target) < Math.abs(values[best] - target) ? index : best), 0);

function slider(run, data, withRun) {
  const last = data.at.length - 1;
  const start = thresholdOf(run) ?? data.at[balanced(data)];
  chosen.set(run, start);
  const input = el("input", { type: "range", min: 0, max: last, value: nearest(data.at, start), "aria-label": `Threshold${withRun ? ` of run ${run.toUpperCase()}` : ""}` });
  const value = el("output", { class: "value" });
  const reset = data.calibrated === null ? null : el("button", { type: "button", class: "link" }, "calibrated");
  const cursor = svg("line", { class: "cursor", y1: 0, y2: HEIGHT });
  const chart = svg("svg", { viewBox: `-4 -4 ${WIDTH + 8} ${HEIGHT + 8}`, class: "curves", role: "img", "aria-label": "Precision and recall by threshold" },
    svg("path", { class: "frame", d: `M0 0V${HEIGHT}H${WIDTH}` }), line(data, recall, "recall"), line(data, precision, "precision"), cursor);
  const pairs = [tile("precision", "of the accepted pairs"), tile("recall", "of the pairs of one class")];
  const summary = el("p", { class: "faint" });

  const show = () => {
    const threshold = chosen.get(run), index = firstAtLeast(data.at, threshold);
    value.textContent = threshold.toFixed(3);
    input.setAttribute("aria-valuetext", threshold.toFixed(3));
    const x = WIDTH * (threshold - data.at[0]) / (data.at[last] - data.at[0] || 1);
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, Math.max(0, Math.min(WIDTH, x)));
    pairs[0].firstChild.textContent = Number.isNaN(precision(data, index)) ? "–" : percent(precision(data, index));
    pairs[1].firstChild.textContent = percent(recall(data, index));
    const answered = data.answered[index] ?? 0;
    summary.textContent = answered
      ? `${percent(answered / data.queries, 0)} of ${count(data.queries)} queries have a match; for ${percent(data.right[index] / answered)} of these, the nearest image is of the same class.`
      : `None of ${count(data.queries)} queries has a match.`;
    if (reset) reset.hidden = Math.abs(threshold - data.calibrated) < 1e-9;
    listener(run, threshold);
  };
  input.addEventListener("input", () => { chosen.set(run, data.at[Number(input.value)]); show(); });
  reset?.addEventListener("click", () => { chosen.set(run, data.calibrated); input.value = nearest(data.at, data.calibrated); show(); input.focus(); });
  show();
  const title = withRun ? `${run.toUpperCase()}: match from` : "Match from";
  const { threshold_note: measured } = runOf(run);
  const note = measured === null || data.calibrated === null ? null : el("details", {}, el("summary", { class: "faint" }, `Measured: ${data.calibrated.toFixed(3)} on the test classes`), el("p", { class: "faint" }, `${measured[0].toUpperCase()}${measured.slice(1)}.`));
  return [el("h2", { class: "row" }, el("span", {}, title), value, reset), input, chart, el("div", { class: "tiles" }, ...pairs), summary, ...(note ? [note] : [])];
}

/** The index of the first value that is at least the threshold. */
const firstAtLeast = (values, threshold) => { const index = values.findIndex((value) => value >= threshold - 1e-6); return index < 0 ? values.length - 1 : index; };
const precision = (data, i) => data.same[i] / (data.same[i] + data.other[i]);
const recall = (data, i) => data.same[i] / data.same[0];
const balanced = (data) => nearest(data.at.map((_, i) => precision(data, i) - recall(data, i) || 1), 0);
const tile = (name, words) => el("div", { class: `tile ${name}` }, el("b"), el("span", {}, name), el("small", {}, words));

function line(data, of, name) {
  const last = data.at.length - 1, range = data.at[last] - data.at[0] || 1;
  const points = data.at.map((at, i) => [WIDTH * (at - data.at[0]) / range, HEIGHT * (1 - of(data, i))]).filter(([, y]) => !Number.isNaN(y));
  return svg("path", { class: name, d: `M${points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}` });
}
