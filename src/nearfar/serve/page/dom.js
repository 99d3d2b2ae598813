// Elements, number formats and messages. Text is only ever inserted as text nodes, never as HTML.

export const $ = (id) => document.getElementById(id);

/** An element with attributes ("on..." adds a listener, null is skipped) and children (elements or text). */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const count = (number) => number.toLocaleString("en");
export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
export const named = (label) => label ?? "no class";

/** A message that disappears by itself. */
export function toast(text, kind = "") {
  const element = el("p", { class: `toast ${kind}` }, text);
  $("toasts").append(element);
  setTimeout(() => element.remove(), kind === "problem" ? 9000 : 5000);
}

/** A message in an empty view. */
export function message(title, text, ...more) {
  return el("div", { class: "message" }, el("h2", {}, title), text ? el("p", {}, text) : null, ...more);
}

/** An error message with a button to try again. */
export function failure(error, again) {
  const retry = again ? el("button", { type: "button", onclick: again }, "Try again") : null;
  const element = message(error.title ?? "The request failed", error.message, retry);
  element.setAttribute("role", "alert");
  return element;
}

/** Placeholders for cards. */
export function skeletons(number) {
  return Array.from({ length: number }, () => el("li", { class: "card skeleton", "aria-hidden": "true" }, el("span", { class: "frame" })));
}
