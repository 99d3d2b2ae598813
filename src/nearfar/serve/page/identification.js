// The result of identification: an enrolled class, or none.
import { el, percent, plural } from "./dom.js";

const RATES = ["0.01", "0.05", "0.1", "0.2"];

/** The panel above the neighbours of an uploaded picture; `choose` is called with another false accept rate. */
export function identificationPanel(answer, far, choose) {
  const { calibration, verdict, probability } = answer;
  if (!calibration) return el("p", { class: "who faint" }, `Identification is not calibrated: ${answer.why_not}.`);
  const second = answer.runner_up === null ? "" : `, ${answer.runner_up} is at ${answer.runner_up_similarity.toFixed(3)}`;
  const title = { enrolled: answer.who, unsure: `Perhaps ${answer.nearest}`, none: "None of the enrolled classes" }[verdict];
  const certainty = verdict === "none" ? `${answer.nearest} with ${percent(probability, 0)}` : `${percent(probability, 0)} probable`;
  const reason = verdict === "unsure" ? ` This is below the threshold for a false accept rate of ${percent(calibration.wished, 0)}.` : "";
  const rates = el("select", {}, ...RATES.map((rate) => el("option", { value: rate, selected: rate === far }, percent(Number(rate), 0))));
  rates.addEventListener("change", () => choose(rates.value));
  return el("div", { class: `who panel ${verdict}` },
    el("p", { class: "whose" }, el("b", {}, title), `· ${certainty}`, bar(probability)),
    el("p", { class: "faint" }, `${answer.nearest} is at ${answer.similarity.toFixed(3)}${second}.${reason}`),
    el("label", { class: "faint" }, "Of pictures of unknown classes, at most ", rates, " may be named."),
    el("details", {},
      el("summary", { class: "faint" }, `${percent(calibration.dir, 0)} of pictures of enrolled classes are named, and ${percent(calibration.far)} of others`),
      el("p", { class: "faint" }, `In 90 % of galleries like this one, of ${plural(answer.classes, "class", "classes")}, ${between(calibration.dir_interval)} of pictures of enrolled classes are named correctly, and ${between(calibration.far_interval)} of pictures of unknown classes are named. Both were measured on ${plural(calibration.classes, "class", "classes")} that the model was not trained on. The probability assumes that ${percent(calibration.prior, 0)} of pictures are of an enrolled class.`)));
}

const between = ([low, high]) => `${percent(low).replace(" %", "")} to ${percent(high)}`;
const bar = (share) => el("span", { class: "bar", "aria-hidden": "true", vars: { "--s": share } });
