"use strict";
// The map: show the image under the pointer and highlight its class. The points are in the SVG.
for (const map of document.querySelectorAll(".map")) {
  const data = JSON.parse(map.querySelector("script").textContent);
  const svg = map.querySelector("svg"), tip = map.querySelector(".tip");
  const image = tip.querySelector("i"), label = tip.querySelector("span"), more = tip.querySelector("small");
  const points = new Map([...svg.querySelectorAll("[data-p]")].map(e => [Number(e.dataset.p), e]));
  const rows = Math.ceil(data.x.length / data.across);
  image.style.backgroundImage = data.sheet ? `url("${data.sheet}")` : "none";
  image.style.backgroundSize = `${data.across * 96}px ${rows * 96}px`;
  image.hidden = !data.sheet;
  let shown = -1;
  const show = nearest => {
    if (nearest === shown) return;
    shown = nearest;
    for (const e of svg.querySelectorAll(".same, .here")) e.classList.remove("same", "here");
    map.classList.toggle("chosen", nearest >= 0);
    tip.hidden = nearest < 0;
    if (nearest < 0) return;
    for (const [p, e] of points) if (data.label[p] === data.label[nearest]) e.classList.add("same");
    points.get(nearest).classList.add("here");
    image.style.backgroundPosition = `${-96 * (nearest % data.across)}px ${-96 * Math.floor(nearest / data.across)}px`;
    label.textContent = data.names[data.label[nearest]];
    const found = data.found[nearest];
    more.textContent = found < 0 ? "" : data.right[nearest] ? "nearest image: same class" : `nearest image: ${data.names[found]}`;
    const box = svg.getBoundingClientRect(), scale = box.width / data.width;
    const x = data.x[nearest] * scale, y = data.y[nearest] * scale;
    tip.style.left = `${Math.max(0, Math.min(x + 14, box.width - tip.offsetWidth))}px`;
    tip.style.top = `${y + 14 + tip.offsetHeight > box.height ? y - tip.offsetHeight - 14 : y + 14}px`;
  };
  const at = event => {
    const box = svg.getBoundingClientRect(), scale = data.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    let best = -1, distance = (28 * scale) ** 2;
    for (let i = 0; i < data.x.length; i++) {
      const d = (data.x[i] - x) ** 2 + (data.y[i] - y) ** 2;
      if (d < distance) [best, distance] = [i, d];
    }
    show(best);
  };
  svg.addEventListener("pointermove", at);
  svg.addEventListener("pointerdown", at);
  svg.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") show(-1); });
}
// The threshold: the slider moves a line over the curves and shows the precision and recall.
for (const part of document.querySelectorAll(".threshold")) {
  const data = JSON.parse(part.querySelector("script").textContent);
  const input = part.querySelector("input"), output = part.querySelector("output"), cursor = part.querySelector(".cursor");
  const percent = x => `${(100 * x).toFixed(1)} %`;
  const count = n => n.toLocaleString("en");
  const move = () => {
    const i = Number(input.value), same = data.same[i], other = data.other[i], accepted = same + other;
    cursor.style.left = `${100 * (data.left + (data.right - data.left) * i / (data.at.length - 1))}%`;
    output.textContent = `At a threshold of ${data.at[i].toFixed(3)}, ` + (accepted
      ? `${count(accepted)} of ${count(data.pairs)} pairs are accepted: ${percent(same / accepted)} of them are of the same class (precision), and ${percent(same / data.same[0])} of all pairs of the same class are accepted (recall).`
      : "no pair is accepted.");
  };
  input.addEventListener("input", move);
  move();
}
