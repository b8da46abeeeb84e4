// Draws the lanes and tiers of a profile over one time axis. All figures come from the two JSON blocks.
(() => {
  const { seconds, bytes, rate, upper, colors } = page;
  const facts = JSON.parse(document.getElementById("facts").textContent);
  const data = JSON.parse(document.getElementById("lanes").textContent);
  const canvas = document.getElementById("canvas"), tip = document.getElementById("tip");
  const context = canvas.getContext("2d");
  const columns = data.columns, count = columns.begin.length;
  if (count === 0) return;

  const kColors = {
    forward: "#17807e", backward: "#0e5c66", optimize: "#2f7d46",
    visit: "#8aa32b", repair: "#a8452f", round: "#b98a3e",
    weights: "#3f74bd", gradients: "#d5832f", state: "#59a869", caches: "#b5a03c", activations: "#8a66b3",
    workspace: "#98a2af", scalars: "#5a6775", collective: "#b84f66", other: "#6f7c8a",
  };
  const kCollectives = ["gather", "exchange"];
  const kAxis = 34, kLane = 34, kTier = 88, kCaptionLine = 14;
  const kSmall = "11px system-ui, sans-serif", kLarge = "13px system-ui, sans-serif";

  const kindOf = (work) => {
    if (kCollectives.includes(work)) return "collective";
    const word = work.split(" ")[0];
    return word in kColors ? word : "other";
  };
  const kinds = data.work.map(kindOf);

  // By lane, in order of time: indices of columns. On an overlapping lane an instruction is drawn from when
  // the one before has ended: until then it is queued.
  const lanes = data.lanes.map((lane) => ({ name: lane.name, items: [], begin: [], end: [] }));
  for (let i = 0; i < count; ++i) {
    const lane = lanes[columns.lane[i]], end = columns.begin[i] + columns.seconds[i];
    const before = lane.end.length ? lane.end[lane.end.length - 1] : -Infinity;
    lane.items.push(i);
    lane.begin.push(Math.max(columns.begin[i], before));
    lane.end.push(Math.max(end, before));
  }
  const shown = lanes.filter((lane) => lane.items.length > 0);
  const tiers = facts.occupancy.filter((tier) => tier.points.length > 0 && tier.arena > 0);
  for (const tier of tiers)
    tier.peak = tier.points.reduce((most, p) => Math.max(most, sum(p)), 0);

  const first = shown.reduce((t, lane) => Math.min(t, lane.begin[0]), Infinity);
  const last = shown.reduce((t, lane) => Math.max(t, lane.end[lane.end.length - 1]), 0);
  const bounds = facts.steps.map((s) => s.step).map((step, i) => ({ step, end: stepEnd(i) }));
  const view = { begin: first, end: last };

  function sum(point) {
    let bytes = 0;
    for (let c = 1; c < point.length; ++c) bytes += point[c];
    return bytes;
  }
  function stepEnd(index) {
    let end = 0;
    for (let i = 0; i <= index; ++i) end += facts.steps[i].seconds.measured;
    return end;
  }

  // ---- View ----

  function show(begin, end) {
    const least = Math.max((last - first) * 1e-6, 1e-6);
    const length = Math.min(Math.max(end - begin, least), last - first);
    view.begin = Math.min(Math.max(begin, first), last - length);
    view.end = view.begin + length;
    draw();
  }
  function zoom(factor, at) {
    const center = at === undefined ? (view.begin + view.end) / 2 : at;
    show(center - (center - view.begin) * factor, center + (view.end - center) * factor);
  }
  function pan(fraction) {
    const by = (view.end - view.begin) * fraction;
    show(view.begin + by, view.end + by);
  }
  // Shows the middle one of the counted steps.
  function showStep() {
    const counted = bounds.slice(bounds.length - facts.steps_counted);
    if (facts.steps_counted === 0 || bounds.length < 2) return show(first, last);
    const step = counted[Math.floor((counted.length - 1) / 2)];
    const index = bounds.indexOf(step), begin = bounds[index - 1].end, margin = (step.end - begin) * 0.04;
    show(begin - margin, step.end + margin);
  }
  // Names stand in the gutter. The caption of a tier stands above it, in as many lines as it needs.
  const layout = { gutter: 0, tierTops: [], height: 0, captions: [] };
  const width = () => canvas.clientWidth - layout.gutter;
  const xOf = (t) => layout.gutter + ((t - view.begin) / (view.end - view.begin)) * width();
  const snapped = (x) => Math.round(x * devicePixelRatio) / devicePixelRatio;  // no seam between areas that meet
  const timeOf = (x) => view.begin + ((x - layout.gutter) / width()) * (view.end - view.begin);
  const laneTop = (index) => kAxis + index * kLane;

  function setLayout() {
    layout.gutter = canvas.clientWidth < 600 ? 94 : 118;
    layout.captions = tiers.map((tier) => wrapped(caption(tier), width() - 8));
    let y = kAxis + shown.length * kLane;
    layout.tierTops = layout.captions.map((lines) => {
      const top = y + lines.length * kCaptionLine + 12;
      y = top + kTier;
      return top;
    });
    layout.height = y + 6;
  }

  // ---- Drawing ----

  function draw() {
    setLayout();
    page.clear(canvas, context, layout.height);
    context.save();
    context.beginPath();
    context.rect(layout.gutter, 0, width(), layout.height);
    context.clip();
    drawAxis();
    shown.forEach(drawLane);
    tiers.forEach(drawTier);
    context.restore();
    shown.forEach(drawLaneName);
    tiers.forEach(drawTierName);
  }

  // Lines of whole words that are not wider than `most`.
  function wrapped(words, most) {
    context.font = kSmall;
    const lines = [];
    for (const word of words.split(" ")) {
      const line = lines.length ? lines[lines.length - 1] + " " + word : word;
      if (lines.length && context.measureText(line).width <= most) lines[lines.length - 1] = line;
      else lines.push(word);
    }
    return lines;
  }

  const text = (...words) => page.text(context, ...words);

  function drawAxis() {
    const span = view.end - view.begin, about = span / Math.max(width() / 130, 1);
    const tick = page.tick(about);
    for (let k = Math.ceil(view.begin / tick); k * tick <= view.end; ++k) {
      const x = xOf(k * tick);
      context.fillStyle = colors.grid;
      context.fillRect(x, kAxis - 4, 1, layout.height);
      text(seconds(Number((k * tick).toPrecision(12))), x + 3, kAxis - 9, colors.soft, kSmall);
    }
    let begin = 0;
    for (const bound of bounds) {
      const x = xOf(bound.end), left = Math.max(xOf(begin), layout.gutter);
      const right = Math.min(x, layout.gutter + width());
      context.fillStyle = colors.bound;
      context.fillRect(x, 0, 1, layout.height);
      if (right - left > 50)
        text("step " + bound.step, (left + right) / 2, 8, colors.ink, "600 12px system-ui, sans-serif", "center");
      begin = bound.end;
    }
  }

  function drawLane(lane, index) {
    const top = laneTop(index) + 4, high = kLane - 8;
    context.fillStyle = colors.ground;
    context.fillRect(layout.gutter, top, width(), high);
    // Instructions that are shorter than a pixel share it. It is the paler the less of its time they take.
    const few = { pixel: NaN, filled: 0, color: "" };
    const flush = () => {
      if (few.filled === 0) return;
      context.globalAlpha = Math.min(1, Math.max(0.3, few.filled));
      context.fillStyle = few.color;
      context.fillRect(few.pixel, top, 1, high);
      context.globalAlpha = 1;
      few.filled = 0;
    };
    for (let k = upper(lane.end, view.begin); k < lane.items.length && lane.begin[k] < view.end; ++k) {
      const x = xOf(lane.begin[k]), right = xOf(lane.end[k]), wide = right - x, i = lane.items[k];
      const color = kColors[kinds[columns.work[i]]];
      if (wide < 1) {
        if (Math.floor(x) !== few.pixel) flush();
        few.pixel = Math.floor(x);
        few.filled += wide;
        few.color = color;
        continue;
      }
      flush();
      context.fillStyle = color;
      context.fillRect(x, top, wide > 3 ? wide - 0.6 : wide, high);
      const name = data.names[columns.name[i]];
      const label = name.startsWith(lane.name + " ") ? name.slice(lane.name.length + 1) : name;
      if (wide > 34) {
        const left = Math.max(x, layout.gutter);
        context.save();
        context.beginPath();
        context.rect(left, top, Math.min(right, layout.gutter + width()) - left - 2, high);
        context.clip();
        text(label, left + 4, top + high / 2 + 0.5, "#fff", kSmall);
        context.restore();
      }
    }
    flush();
  }

  function drawLaneName(lane, index) {
    const y = laneTop(index) + kLane / 2;
    text(lane.name, layout.gutter - 10, y - (facts.lanes ? 6 : 0), colors.ink, kLarge, "right");
    const row = (facts.lanes || []).find((l) => l.lane === lane.name);
    if (!row) return;
    const busy = (100 * row.busy_seconds.measured) / facts.step_seconds.measured;
    text("busy " + busy.toFixed(0) + " %", layout.gutter - 10, y + 8, colors.soft, kSmall, "right");
  }

  const scaleOf = (tier) => 1.12 * Math.max(tier.peak, tier.arena, tier.allowed < 2 * tier.arena ? tier.allowed : 0);

  // What the lines of a tier are: its arena, and what its budget leaves for the arena.
  function caption(tier) {
    const where = tier.allowed <= scaleOf(tier) ? "red" : "above the drawing";
    const less = tier.reserve > 0 ? " less reserve " + bytes(tier.reserve) : "";
    return "arena " + bytes(tier.arena) + " (dashed), at most " + bytes(tier.allowed) + " (" + where +
      "): budget " + bytes(tier.budget) + less;
  }

  function drawTier(tier, index) {
    const top = layout.tierTops[index], scale = scaleOf(tier), points = tier.points;
    const yOf = (n) => top + kTier - (n / scale) * kTier;
    context.fillStyle = colors.ground;
    context.fillRect(layout.gutter, top, width(), kTier);
    const paint = (point, x, right) => {
      let below = 0;
      for (let c = 1; c < point.length; ++c) {
        if (point[c] === 0) continue;
        context.fillStyle = kColors[facts.classes[c - 1]];
        context.fillRect(x, yOf(below + point[c]), right - x, yOf(below) - yOf(below + point[c]));
        below += point[c];
      }
    };
    const begin = Math.max(upper(points, view.begin, (p) => p[0]) - 1, 0);
    let most = null, from = 0;  // if points share a pixel, the fullest is drawn
    for (let k = begin; k < points.length && points[k][0] < view.end; ++k) {
      const end = k + 1 < points.length ? xOf(points[k + 1][0]) : xOf(last);
      const right = snapped(Math.min(end, layout.gutter + width()));
      if (!most) from = snapped(Math.max(xOf(points[k][0]), layout.gutter));
      if (!most || sum(points[k]) > sum(most)) most = points[k];
      if (right - from < 1) continue;
      paint(most, from, right);
      most = null;
    }
    const line = (n, color, dash) => {
      context.strokeStyle = color;
      context.setLineDash(dash);
      context.beginPath();
      context.moveTo(layout.gutter, yOf(n));
      context.lineTo(layout.gutter + width(), yOf(n));
      context.stroke();
      context.setLineDash([]);
    };
    line(tier.arena, colors.ink, [4, 4]);
    if (tier.allowed <= scale) line(tier.allowed, colors.warn, []);
    const lines = layout.captions[index];
    lines.forEach((words, i) => {
      const y = top - 8 - (lines.length - 1 - i) * kCaptionLine;
      context.font = kSmall;
      context.fillStyle = colors.paper;  // over lines of the axis
      context.fillRect(layout.gutter + 2, y - 7, context.measureText(words).width + 4, kCaptionLine);
      text(words, layout.gutter + 4, y, colors.soft, kSmall);
    });
  }

  function drawTierName(tier, index) {
    const y = layout.tierTops[index] + 14;
    text(tier.tier, layout.gutter - 10, y, colors.ink, kLarge, "right");
    text("most " + bytes(tier.peak), layout.gutter - 10, y + 17, colors.soft, kSmall, "right");
  }

  // ---- Pointing at things ----

  // The name, with what the buffer in it is; "LANE BUFFER FIRST-END" has one.
  function explained(name) {
    const words = name.split(" "), form = (buffer) => buffer.split(".")[0];
    const row = words.length === 3 && facts.buffer_names.find((n) => form(n.name) === form(words[1]));
    return row ? name + "\n" + row.name + ": " + row.meaning : name;
  }

  function describeItem(lane, t) {
    const k = upper(lane.begin, t) - 1;
    if (k < 0 || lane.end[k] < t) {
      const next = lane.items[k + 1], name = next === undefined ? "the end" : data.names[columns.name[next]];
      return lane.name + " is idle until " + name;
    }
    const i = lane.items[k], lines = [explained(data.names[columns.name[i]])];
    const took = lane.end[k] - lane.begin[k];
    lines.push(data.work[columns.work[i]] + ", " + seconds(took) + (columns.step[i] ? ", step " + columns.step[i] : ""));
    if (columns.begin[i] < lane.begin[k]) lines.push("queued for " + seconds(lane.begin[k] - columns.begin[i]) + " before");
    if (columns.bytes[i] > 0)
      lines.push(bytes(columns.bytes[i]) + (took > 0 ? ", " + rate(columns.bytes[i] / took) : ""));
    if (columns.for[i] >= 0) lines.push("waited " + seconds(columns.wait[i]) + " for " + data.names[columns.for[i]]);
    return lines.join("\n");
  }

  function describeTier(tier, t) {
    const point = tier.points[Math.max(upper(tier.points, t, (p) => p[0]) - 1, 0)];
    const lines = [tier.tier + ": " + bytes(sum(point)) + " of " + bytes(tier.arena)];
    for (let c = point.length - 1; c >= 1; --c)
      if (point[c] > 0) lines.push(facts.classes[c - 1] + " " + bytes(point[c]));
    return lines.join("\n");
  }

  function describe(x, y) {
    if (x < layout.gutter) return null;
    const t = timeOf(x), lane = Math.floor((y - kAxis) / kLane);
    if (y < kAxis) return null;
    if (lane < shown.length) return describeItem(shown[lane], t);
    for (let i = 0; i < tiers.length; ++i)
      if (y >= layout.tierTops[i] && y < layout.tierTops[i] + kTier) return describeTier(tiers[i], t);
    return null;
  }

  function point(event) {
    const at = page.place(canvas, event);
    page.tell(tip, canvas, at, describe(at.x, at.y));
  }

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, begin: view.begin, end: view.end };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("pointermove", (event) => {
    if (drag === null) return point(event);
    tip.hidden = true;
    const by = ((drag.x - event.clientX) / width()) * (drag.end - drag.begin);
    show(drag.begin + by, drag.end + by);
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.pow(1.0015, event.deltaY), timeOf(page.place(canvas, event).x));
  }, { passive: false });

  const actions = {
    in: () => zoom(0.6), out: () => zoom(1 / 0.6), left: () => pan(-0.25), right: () => pan(0.25),
    step: showStep, all: () => show(first, last),
  };
  const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 1: "step", 0: "all" };
  canvas.addEventListener("keydown", (event) => {
    if (!(event.key in keys)) return;
    event.preventDefault();
    actions[keys[event.key]]();
  });
  for (const button of document.querySelectorAll("button[data-do]"))
    button.addEventListener("click", actions[button.dataset.do]);

  const legend = document.getElementById("legend");
  const used = new Set(kinds);
  for (const tier of tiers)
    facts.classes.forEach((name, c) => { if (tier.points.some((p) => p[c + 1] > 0)) used.add(name); });
  for (const name of Object.keys(kColors).filter((kind) => used.has(kind))) {
    const entry = document.createElement("span"), box = document.createElement("i");
    box.style.background = kColors[name];
    entry.append(box, name);
    legend.append(entry);
  }
  page.redraw(draw);
  showStep();
  document.body.dataset.drawn = String(count);
})();
