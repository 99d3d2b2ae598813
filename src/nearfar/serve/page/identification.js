// The result of identification: an enrolled class, or none.
import { el, percent, plural } from "./dom.js";

/** The panel above the neighbours of an uploaded picture. */
export function identificationPanel(answer) {
  const { calibration, verdict, probability } = answer;
  if (!calibration) return el("p", { class: "who faint" }, `Identification is not calibrated: ${answer.why_not}.`);
  const second = answer.runner_up === null ? "" : `, ${answer.runner_up} is at ${answer.runner_up_similarity.toFixed(3)}`;
  const title = { enrolled: answer.who, unsure: `Perhaps ${answer.nearest}`, none: "None of the enrolled classes" }[verdict];
  const certainty = verdict === "none" ? `${answer.nearest} with ${percent(probability, 0)}` : `${percent(probability, 0)} probable`;
  const reason = verdict === "unsure" ? ` This is below the threshold for a false accept rate of ${percent(calibration.wished, 0)}.` : "";
  return el("div", { class: `who panel ${verdict}` },
    el("p", { class: "whose" }, el("b", {}, title), `· ${certainty}`, bar(probability)),
    el("p", { class: "faint" }, `${answer.nearest} is at ${answer.similarity.toFixed(3)}${second}.${reason}`),
    el("details", {},
      el("summary", { class: "faint" }, `False accept rate ${percent(calibration.far)} among ${plural(answer.classes, "class", "classes")}`),
      el("p", { class: "faint" }, `This is the share of pictures of unknown classes that are named (${between(calibration.far_interval)} in 90 % of such galleries). ${percent(calibration.dir, 0)} of pictures of enrolled classes are named correctly (${between(calibration.dir_interval)}). Both were measured on ${plural(calibration.classes, "class", "classes")} that the model was not trained on. The probability assumes that ${percent(calibration.prior, 0)} of pictures are of an enrolled class.`)));
}

const between = ([low, high]) => `${percent(low).replace(" %", "")} to ${percent(high)}`;
const bar = (share) => el("span", { class: "bar", "aria-hidden": "true", vars: { "--s": share } });
