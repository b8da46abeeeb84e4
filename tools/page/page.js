"use strict";
// What the scripts of all pages share: figures as text, and a canvas with the colors of the style.
const page = (() => {
  const seconds = (s) => {
    const size = Math.abs(s);
    if (size === 0) return "0 s";
    const digits = (n) => String(Number(n.toPrecision(3)));
    if (size >= 0.9995) return digits(s) + " s";
    return size >= 0.9995e-3 ? digits(s * 1e3) + " ms" : digits(s * 1e6) + " \u00b5s";
  };
  const bytes = (n) => {  // as the tables have them
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = 0;
    for (; n >= 999.5; ++unit) n /= 1024;
    const decimals = unit === 0 ? 0 : n < 0.9995 ? 3 : n < 9.995 ? 2 : n < 99.95 ? 1 : 0;
    return n.toFixed(decimals) + " " + units[unit];
  };
  const rate = (n) => {
    const units = ["", "k", "M", "G", "T", "P"];
    let unit = 0;
    for (; n >= 1000 && unit + 1 < units.length; ++unit) n /= 1000;
    return n.toPrecision(3) + " " + units[unit] + "B/s";
  };
  // The least of 1, 2 and 5 times powers of ten that is not below `about`.
  const tick = (about) => {
    const power = Math.pow(10, Math.floor(Math.log10(about)));
    return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= about);
  };
  // The first index whose value is above t.
  const upper = (values, t, get = (v) => v) => {
    let low = 0, high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (get(values[middle]) > t) high = middle;
      else low = middle + 1;
    }
    return low;
  };

  // The style's colors, which depend on whether the reader prefers dark pages.
  const colors = {};
  const readColors = () => {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["ink", "soft", "paper", "ground", "grid", "bound", "warn"])
      colors[name] = style.getPropertyValue("--" + name).trim();
  };
  // Clears the canvas, `height` pixels of the page high, in the screen's own resolution.
  const clear = (canvas, context, height) => {
    const ratio = window.devicePixelRatio || 1;
    readColors();
    canvas.style.height = height + "px";
    canvas.width = Math.round(canvas.clientWidth * ratio);
    canvas.height = Math.round(height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = colors.paper;
    context.fillRect(0, 0, canvas.clientWidth, height);
    context.textBaseline = "middle";
  };
  const text = (context, value, x, y, color, font, align = "left") => {
    context.font = font;
    context.fillStyle = color;
    context.textAlign = align;
    context.fillText(value, x, y);
  };
  // Where the event is on the canvas.
  const place = (canvas, event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  // Shows `words` beside a place on the canvas; null: nothing.
  const tell = (tip, canvas, { x, y }, words) => {
    tip.hidden = words === null;
    if (words === null) return;
    tip.textContent = words;
    tip.style.left = Math.max(Math.min(x + 14, canvas.clientWidth - tip.offsetWidth - 4), 0) + "px";
    tip.style.top = y + 16 + "px";
  };
  const redraw = (draw) => {
    window.addEventListener("resize", draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  };
  return { seconds, bytes, rate, tick, upper, colors, clear, text, place, tell, redraw };
})();
