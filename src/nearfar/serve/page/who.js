// Who it is, or none of the enrolled classes.
import { el, percent, plural } from "./dom.js";

const RATES = ["0.01", "0.05", "0.1", "0.2"];

/** What is said above the neighbours of a picture that was given; `choose` is told another rate. */
export function who(found, far, choose) {
  const { calibration: promise, verdict, probability } = found;
  if (!promise) return el("p", { class: "who faint" }, `Who it is cannot be said: not calibrated, because ${found.why_not}.`);
  const second = found.runner_up === null ? "" : `, ${found.runner_up} is at ${found.runner_up_similarity.toFixed(3)}`;
  const title = { enrolled: found.who, unsure: `Perhaps ${found.nearest}`, none: "None of the enrolled classes" }[verdict];
  const sure = verdict === "none" ? `${found.nearest} with ${percent(probability, 0)}` : `${percent(probability, 0)} probable`;
  const why = verdict === "unsure" ? " Too little evidence to name it." : "";
  const rates = el("select", {}, ...RATES.map((rate) => el("option", { value: rate, selected: rate === far }, percent(Number(rate), 0))));
  rates.addEventListener("change", () => choose(rates.value));
  return el("div", { class: `who panel ${verdict}` },
    el("p", { class: "whose" }, el("b", {}, title), `· ${sure}`, bar(probability)),
    el("p", { class: "faint" }, `${found.nearest} is at ${found.similarity.toFixed(3)}${second}.${why}`),
    el("label", { class: "faint" }, "Of pictures of anything else, at most ", rates, " may be named."),
    el("details", {},
      el("summary", { class: "faint" }, `${percent(promise.dir, 0)} of the enrolled are named, and ${percent(promise.far)} of anything else`),
      el("p", { class: "faint" }, `In 90 % of galleries like this one, of ${plural(found.classes, "class", "classes")}: ${between(promise.dir_interval)} of the pictures of enrolled classes are named, and rightly; ${between(promise.far_interval)} of the others are named. Found on ${plural(promise.classes, "class", "classes")} that the model was not trained on. The probability is for a picture that is as likely as not of an enrolled class.`)));
}

const between = ([low, high]) => `${percent(low).replace(" %", "")} to ${percent(high)}`;
const bar = (share) => el("span", { class: "bar", "aria-hidden": "true", vars: { "--s": share } });
