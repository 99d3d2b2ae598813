// Who it is, or none of the enrolled classes.
import { el, percent, plural } from "./dom.js";

/** What is said above the neighbours of a picture that was given. */
export function who(found) {
  const { calibration: promise, verdict, probability } = found;
  if (!promise) return el("p", { class: "who faint" }, `Who it is cannot be said: not calibrated, because ${found.why_not}.`);
  const second = found.runner_up === null ? "" : `, ${found.runner_up} is at ${found.runner_up_similarity.toFixed(3)}`;
  const title = { enrolled: found.who, unsure: `Perhaps ${found.nearest}`, none: "None of the enrolled classes" }[verdict];
  const sure = verdict === "none" ? `${found.nearest} with ${percent(probability, 0)}` : `${percent(probability, 0)} probable`;
  const why = verdict === "unsure" ? ` Too little evidence to name it, if at most ${percent(promise.wished, 0)} of strangers are to be named.` : "";
  return el("div", { class: `who panel ${verdict}` },
    el("p", { class: "whose" }, el("b", {}, title), `· ${sure}`, bar(probability)),
    el("p", { class: "faint" }, `${found.nearest} is at ${found.similarity.toFixed(3)}${second}.${why}`),
    el("details", {},
      el("summary", { class: "faint" }, `Of strangers, ${percent(promise.far)} are taken for one of the ${plural(found.classes, "class", "classes")}`),
      el("p", { class: "faint" }, `${between(promise.far_interval)} in 90 % of such galleries. Of pictures of enrolled classes, ${percent(promise.dir, 0)} are named, and rightly (${between(promise.dir_interval)}). Found on ${plural(promise.classes, "class", "classes")} that the model was not trained on. The probability is for a picture that is as likely as not of an enrolled class.`)));
}

const between = ([low, high]) => `${percent(low).replace(" %", "")} to ${percent(high)}`;
const bar = (share) => el("span", { class: "bar", "aria-hidden": "true", vars: { "--s": share } });
