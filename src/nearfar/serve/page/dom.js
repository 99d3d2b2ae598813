// Elements, words and messages. Text from outside goes into a page as text alone: nothing here takes HTML.

export const $ = (id) => document.getElementById(id);

/** An element: attributes by name (on... are listeners, null is left out), then children: elements or text. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, one] of Object.entries(value)) made.style.setProperty(key, one);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export const count = (number) => number.toLocaleString("en");
export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
export const named = (label) => label ?? "no class";

/** A message that goes away by itself. */
export function toast(words, kind = "") {
  const made = el("p", { class: `toast ${kind}` }, words);
  $("toasts").append(made);
  setTimeout(() => made.remove(), kind === "problem" ? 9000 : 5000);
}

/** What is shown where there is nothing. */
export function message(title, words, ...more) {
  return el("div", { class: "message" }, el("h2", {}, title), words ? el("p", {}, words) : null, ...more);
}

/** What is shown where something failed. */
export function failure(error, again) {
  const retry = again ? el("button", { type: "button", onclick: again }, "Try again") : null;
  const made = message(error.title ?? "That did not work", error.message, retry);
  made.setAttribute("role", "alert");
  return made;
}

/** Pictures-to-be. */
export function skeletons(number) {
  return Array.from({ length: number }, () => el("li", { class: "card skeleton", "aria-hidden": "true" }, el("span", { class: "frame" })));
}
