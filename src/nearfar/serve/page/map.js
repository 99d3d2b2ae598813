// The map, in which similar images are near each other. It is drawn on a canvas; zooming in shows pictures.
import { get, oneRun, picture } from "./api.js";
import { searchAddress } from "./cards.js";
import { $, count, el, failure, plural, skeletons } from "./dom.js";

const PICTURES = 70; // the largest number of visible points that are drawn as pictures
const SIDE = 46; // of a picture, in pixels
const NEAR = 26; // the largest distance of the pointer from a chosen point, in pixels
let pending = new AbortController();
let leave = () => {};

export const leaveMap = () => { pending.abort(); leave(); };

export async function showMap() {
  leaveMap();
  pending = new AbortController();
  const { signal } = pending, run = oneRun(), body = $("map-body");
  $("map-about").textContent = "";
  body.replaceChildren(el("p", { class: "faint" }, "Computing the map; this takes some seconds the first time …"), el("ul", { class: "grid" }, ...skeletons(6)));
  try {
    const data = await get(`runs/${run}/map`, {}, signal);
    const wrong = data.right.filter((right) => !right).length;
    $("map-about").textContent = `${plural(data.x.length, "image")} of ${plural(data.names.length, "class", "classes")}, projected by ${data.method}. For ${count(wrong)}, the nearest image is of another class.`;
    leave = draw(run, data, body);
  } catch (error) {
    if (error.name !== "AbortError") body.replaceChildren(failure(error, showMap));
  }
}

function draw(run, data, body) {
  const canvas = el("canvas", { tabindex: 0, role: "application", "aria-label": `Map of ${plural(data.x.length, "image")}. Arrow keys move between images, Enter searches, plus and minus zoom.` });
  const tip = el("div", { class: "tip", hidden: true }, el("img", { alt: "", width: 96, height: 96 }), el("span"), el("small"));
  const announcement = el("p", { class: "unseen", "aria-live": "polite" });
  const button = (sign, name, change) => el("button", { type: "button", class: "icon", "aria-label": name, title: name, onclick: change }, sign);
  const tools = el("div", { class: "maptools" }, button("+", "Zoom in", () => zoom(1.6)), button("−", "Zoom out", () => zoom(1 / 1.6)), button("⤢", "Show all", () => { view = whole(); repaint(); }));
  const legend = el("p", { class: "legend faint" }, el("i", { class: "hit" }), "nearest image is of its class ", el("i", { class: "miss" }), "nearest image is of another class");
  body.replaceChildren(el("div", { class: "map" }, canvas, tools, tip, announcement), legend);
  const context = canvas.getContext("2d");
  const images = new Map();
  const whole = () => ({ x: 0, y: 0, scale: 1 });
  let view = whole(), chosen = -1, scheduled = false, width = 0, height = 0, margin = 28;

  const position = (i) => [
    (margin + data.x[i] * (width - 2 * margin) - view.x) * view.scale,
    (margin + (1 - data.y[i]) * (height - 2 * margin) - view.y) * view.scale,
  ];
  const repaint = () => { if (!scheduled) { scheduled = true; requestAnimationFrame(() => { scheduled = false; paint(); }); } };

  function paint() {
    if (!width) return;
    const colour = (selector) => getComputedStyle(legend.querySelector(selector)).color;
    const hit = colour(".hit"), miss = colour(".miss"), ink = getComputedStyle(canvas).color;
    const density = devicePixelRatio;
    context.setTransform(density, 0, 0, density, 0, 0);
    context.clearRect(0, 0, width, height);
    const visible = [];
    for (let i = 0; i < data.x.length; i++) {
      const [x, y] = position(i);
      if (x > -SIDE && y > -SIDE && x < width + SIDE && y < height + SIDE) visible.push([i, x, y]);
    }
    const close = visible.length <= PICTURES && view.scale > 1;
    const label = chosen < 0 ? -1 : data.label[chosen];
    for (const [i, x, y] of visible) {
      context.globalAlpha = label < 0 || data.label[i] === label ? 1 : 0.22;
      const image = close ? pictureOf(i) : null;
      if (image) {
        context.drawImage(image, x - SIDE / 2, y - SIDE / 2, SIDE, SIDE);
        context.lineWidth = 2;
        context.strokeStyle = data.right[i] ? hit : miss;
        context.setLineDash(data.right[i] ? [] : [4, 3]);
        context.strokeRect(x - SIDE / 2, y - SIDE / 2, SIDE, SIDE);
        context.setLineDash([]);
      } else if (data.right[i]) {
        context.fillStyle = hit;
        context.globalAlpha *= label < 0 ? 0.62 : 1;
        context.beginPath();
        context.arc(x, y, 4, 0, 2 * Math.PI);
        context.fill();
      } else {
        context.strokeStyle = miss;
        context.lineWidth = 2;
        context.beginPath();
        context.moveTo(x - 3.6, y - 3.6); context.lineTo(x + 3.6, y + 3.6);
        context.moveTo(x - 3.6, y + 3.6); context.lineTo(x + 3.6, y - 3.6);
        context.stroke();
      }
    }
    context.globalAlpha = 1;
    if (chosen >= 0) {
      const [x, y] = position(chosen);
      context.strokeStyle = ink;
      context.lineWidth = 2.5;
      context.beginPath();
      context.arc(x, y, close ? SIDE * 0.75 : 8, 0, 2 * Math.PI);
      context.stroke();
    }
  }

  function pictureOf(i) {
    if (!images.has(i)) {
      const image = new Image();
      images.set(i, null);
      image.addEventListener("load", () => { images.set(i, image); repaint(); });
      image.src = picture(run, data.item[i], 96);
    }
    return images.get(i);
  }

  function choose(i, speak = false) {
    if (i === chosen) return;
    chosen = i;
    tip.hidden = i < 0;
    canvas.classList.toggle("pointing", i >= 0);
    if (i >= 0) {
      const [x, y] = position(i);
      tip.children[0].src = picture(run, data.item[i], 96);
      tip.children[1].textContent = data.names[data.label[i]];
      tip.children[2].textContent = data.right[i] ? "nearest image is of its class" : "nearest image is of another class";
      tip.style.left = `${Math.max(0, Math.min(x + 18, width - tip.offsetWidth))}px`;
      tip.style.top = `${y + 18 + tip.offsetHeight > height ? Math.max(0, y - 18 - tip.offsetHeight) : y + 18}px`;
      if (speak) announcement.textContent = `${data.names[data.label[i]]}, ${tip.children[2].textContent}`;
    }
    repaint();
  }

  function nearest(x, y, within = NEAR) {
    let best = -1, distance = within ** 2;
    for (let i = 0; i < data.x.length; i++) {
      const [a, b] = position(i), d = (a - x) ** 2 + (b - y) ** 2;
      if (d < distance) [best, distance] = [i, d];
    }
    return best;
  }

  function zoom(factor, x = width / 2, y = height / 2) {
    const scale = Math.max(1, Math.min(40, view.scale * factor));
    view = bounded({ scale, x: view.x + x / view.scale - x / scale, y: view.y + y / view.scale - y / scale });
    choose(-1);
    repaint();
  }
  const bounded = ({ scale, x, y }) => ({ scale, x: Math.max(0, Math.min(x, width - width / scale)), y: Math.max(0, Math.min(y, height - height / scale)) });
  const search = (i) => { if (i >= 0) location.hash = searchAddress(run, data.item[i]); };

  // One pointer moves the map or chooses a point; two zoom.
  const pointers = new Map();
  let moved = 0;
  const at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  const pointerDistance = () => { const [[a, b], [c, d]] = [...pointers.values()]; return Math.hypot(a - c, b - d); };
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); pointers.set(event.pointerId, at(event)); moved = 0; });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = at(event), before = pointers.get(event.pointerId);
    if (!before) { choose(nearest(x, y)); return; }
    const previous = pointers.size === 2 ? pointerDistance() : 0;
    pointers.set(event.pointerId, [x, y]);
    moved += Math.hypot(x - before[0], y - before[1]);
    if (pointers.size === 2) {
      const [[a, b], [c, d]] = [...pointers.values()];
      zoom(pointerDistance() / (previous || 1), (a + c) / 2, (b + d) / 2);
    } else if (moved > 5) {
      view = bounded({ ...view, x: view.x - (x - before[0]) / view.scale, y: view.y - (y - before[1]) / view.scale });
      choose(-1);
      repaint();
    }
  });
  const up = (event) => {
    const single = pointers.size === 1;
    pointers.delete(event.pointerId);
    if (!single || moved > 5 || event.type === "pointercancel") return;
    const point = nearest(...at(event));
    // The first touch selects a point, the second searches with it.
    if (event.pointerType === "mouse" || point === chosen) search(point);
    else choose(point);
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse" && !pointers.size) choose(-1); });
  canvas.addEventListener("wheel", (event) => { event.preventDefault(); zoom(Math.exp(-event.deltaY / 300), ...at(event)); }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const direction = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === "Enter") search(chosen);
    else if (event.key === "+" || event.key === "=") zoom(1.6);
    else if (event.key === "-") zoom(1 / 1.6);
    else if (event.key === "Escape") choose(-1);
    else if (direction) choose(chosen < 0 ? nearest(width / 2, height / 2, Infinity) : neighbour(direction), true);
    else return;
    event.preventDefault();
  });
  /** The nearest point in a direction. */
  function neighbour([right, down]) {
    const [x, y] = position(chosen);
    let best = chosen, distance = Infinity;
    for (let i = 0; i < data.x.length; i++) {
      const [a, b] = position(i), along = (a - x) * right + (b - y) * down, across = Math.abs((a - x) * down) + Math.abs((b - y) * right);
      if (along > 1 && along + 2 * across < distance) [best, distance] = [i, along + 2 * across];
    }
    return best;
  }

  const fit = () => {
    width = canvas.clientWidth;
    height = canvas.clientHeight;
    canvas.width = Math.round(width * devicePixelRatio);
    canvas.height = Math.round(height * devicePixelRatio);
    view = bounded(view);
    choose(-1);
    repaint();
  };
  const resizeObserver = new ResizeObserver(fit);
  resizeObserver.observe(canvas);
  addEventListener("themechange", repaint);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", repaint);
  canvas.pointAt = position; // for tests and scripts
  return () => { resizeObserver.disconnect(); removeEventListener("themechange", repaint); dark.removeEventListener("change", repaint); };
}
