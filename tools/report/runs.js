// Draws the curves of runs. All figures come from the JSON block; the page has a canvas for each chart.
(() => {
  const { bytes, tick, upper, colors } = page;
  const runs = JSON.parse(document.getElementById("runs").textContent);
  const kColors = ["#2f6db3", "#d5832f", "#3d9a56", "#b84f66", "#8a66b3", "#17a2a0", "#8a7a2b", "#7a8796"];
  const kDashes = [[], [7, 3], [2, 3]];  // of the first eight runs, the next eight, ...
  const kLeft = 72, kRight = 14, kTop = 10, kBottom = 24;
  const kSmall = "11px system-ui, sans-serif";
  const kDotsMost = 60;  // a curve of few points shows them

  runs.forEach((run, i) => {
    run.color = kColors[i % kColors.length];
    run.dash = kDashes[Math.floor(i / kColors.length) % kDashes.length];
    run.shown = true;
  });
  const charts = [...document.querySelectorAll("canvas[data-curve]")].map((canvas) => ({
    canvas, context: canvas.getContext("2d"), tip: canvas.nextElementSibling, names: canvas.dataset,
    height: canvas.closest(".pair") ? 240 : 340, hover: null, drag: null,
  }));
  let log = false;
  const whole = { begin: Infinity, end: -Infinity };
  for (const run of runs)
    for (const { steps } of Object.values(run.curves)) {
      whole.begin = Math.min(whole.begin, steps[0]);
      whole.end = Math.max(whole.end, steps[steps.length - 1]);
    }
  if (whole.begin === whole.end) whole.end += 1;
  const view = { ...whole };

  const isLog = (chart) => log && "loss" in chart.names;
  const curvesOf = (chart, name) =>
    runs.filter((run) => run.shown && name && run.curves[name]).map((run) => ({ run, ...run.curves[name] }));
  const drawable = (chart, value) => value !== null && (value > 0 || !isLog(chart));
  // Indices of the points in view, and one more on either side, to which lines lead.
  const inView = (steps) => [Math.max(upper(steps, view.begin - 1) - 1, 0), Math.min(upper(steps, view.end) + 1, steps.length)];

  const number = (value) => String(Number(value.toPrecision(5)));
  const shownValue = (chart, value) =>
    value === null ? "not finite" : chart.names.unit === "bytes" ? bytes(value) : number(value);

  // ---- Scales ----

  const width = (chart) => Math.max(chart.canvas.clientWidth - kLeft - kRight, 1);
  const high = (chart) => chart.height - kTop - kBottom;
  const xOf = (chart, step) => kLeft + ((step - view.begin) / (view.end - view.begin)) * width(chart);
  const stepOf = (chart, x) => view.begin + ((x - kLeft) / width(chart)) * (view.end - view.begin);
  const yOf = (chart, value) => {
    const { least, most } = chart.scale, at = isLog(chart) ? Math.log(value) : value;
    return kTop + high(chart) * (1 - (at - least) / (most - least));
  };

  // The least and the greatest value in view, as the axis has them: logarithms on a logarithmic one.
  function setScale(chart) {
    let least = Infinity, most = -Infinity;
    for (const name of [chart.names.curve, chart.names.behind])
      for (const { steps, values } of curvesOf(chart, name)) {
        const [first, end] = inView(steps);
        for (let i = first; i < end; ++i) {
          if (!drawable(chart, values[i])) continue;
          least = Math.min(least, values[i]);
          most = Math.max(most, values[i]);
        }
      }
    if (least > most) [least, most] = isLog(chart) ? [1, 10] : [0, 1];
    if (isLog(chart)) [least, most] = [Math.log(least), Math.log(most)];
    const margin = (most - least) * 0.04 || Math.abs(most) * 0.1 || 1;
    chart.scale = { least: least - margin, most: most + margin };
  }

  function ticksOf(chart) {
    const { least, most } = chart.scale;
    const [low, top] = isLog(chart) ? [Math.exp(least), Math.exp(most)] : [least, most];
    const ticks = [];
    if (isLog(chart) && top / low > 10) {
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(top); ++power)
        for (const n of [1, 2, 5]) ticks.push(n * Math.pow(10, power));
    } else {
      const unit = chart.names.unit === "bytes" ? Math.pow(1024, Math.floor(Math.log(Math.max(top, 1)) / Math.log(1024))) : 1;
      const each = tick((top - low) / unit / (chart.height / 60)) * unit;
      for (let k = Math.ceil(low / each); k * each <= top; ++k) ticks.push(Number((k * each).toPrecision(12)));
    }
    return ticks.filter((value) => value >= low && value <= top);
  }

  // ---- Drawing ----

  function drawAxes(chart) {
    const { context, canvas } = chart, bottom = kTop + high(chart);
    for (const value of ticksOf(chart)) {
      const y = yOf(chart, value);
      context.fillStyle = colors.grid;
      context.fillRect(kLeft, y, width(chart), 1);
      page.text(context, shownValue(chart, value), kLeft - 8, y, colors.soft, kSmall, "right");
    }
    const each = Math.max(tick((view.end - view.begin) / Math.max(width(chart) / 90, 1)), 1);
    for (let k = Math.ceil(view.begin / each); k * each <= view.end; ++k) {
      const x = xOf(chart, k * each);
      context.fillStyle = colors.grid;
      context.fillRect(x, kTop, 1, high(chart));
      page.text(context, String(k * each), Math.min(x, canvas.clientWidth - 24), bottom + 13, colors.soft, kSmall, "center");
    }
    context.fillStyle = colors.bound;
    context.fillRect(kLeft, bottom, width(chart), 1);
  }

  // Returns how many points of the curve are in view.
  function drawCurve(chart, { run, steps, values }, pale) {
    const { context } = chart, [first, end] = inView(steps);
    context.strokeStyle = run.color;
    context.globalAlpha = pale ? 0.3 : 1;
    context.lineWidth = pale ? 1 : 1.6;
    context.setLineDash(run.dash);
    context.beginPath();
    let count = 0, open = false;
    for (let i = first; i < end; ++i) {
      const is = drawable(chart, values[i]);
      if (is && open) context.lineTo(xOf(chart, steps[i]), yOf(chart, values[i]));
      if (is && !open) context.moveTo(xOf(chart, steps[i]), yOf(chart, values[i]));
      open = is;
      count += is && steps[i] >= view.begin && steps[i] <= view.end;
    }
    context.stroke();
    context.setLineDash([]);
    if (!pale && end - first <= kDotsMost)
      for (let i = first; i < end; ++i) if (drawable(chart, values[i])) dot(chart, steps[i], values[i], run.color, 2.5);
    context.globalAlpha = 1;
    return count;
  }

  function dot(chart, step, value, color, radius) {
    const { context } = chart;
    context.fillStyle = color;
    context.beginPath();
    context.arc(xOf(chart, step), yOf(chart, value), radius, 0, 2 * Math.PI);
    context.fill();
  }

  function drawMarks(chart, { steps, values }) {
    const [first, end] = inView(steps);
    for (let i = first; i < end; ++i) dot(chart, steps[i], values[i], colors.warn, 1.7);
    return end - first;
  }

  function draw(chart) {
    const { context, names } = chart;
    page.clear(chart.canvas, context, chart.height);
    setScale(chart);
    drawAxes(chart);
    context.save();
    context.beginPath();
    context.rect(kLeft, 0, width(chart), kTop + high(chart));
    context.clip();
    let points = 0, marks = 0;
    for (const curve of curvesOf(chart, names.behind)) points += drawCurve(chart, curve, true);
    for (const curve of curvesOf(chart, names.curve)) points += drawCurve(chart, curve, false);
    for (const curve of curvesOf(chart, names.marks)) marks += drawMarks(chart, curve);
    if (chart.hover) {
      context.fillStyle = colors.bound;
      context.fillRect(xOf(chart, chart.hover.step), kTop, 1, high(chart));
      for (const { run, step, value } of chart.hover.points)
        if (drawable(chart, value)) dot(chart, step, value, run.color, 3.5);
    }
    if (chart.drag) {
      context.globalAlpha = 0.15;
      context.fillStyle = colors.ink;
      context.fillRect(chart.drag.from, kTop, chart.drag.to - chart.drag.from, high(chart));
      context.globalAlpha = 1;
    }
    context.restore();
    names.points = String(points);
    names.marked = String(marks);
  }
  const drawAll = () => charts.forEach(draw);

  // ---- Pointing at curves ----

  const nearest = (steps, step) => {
    const above = upper(steps, step), below = above - 1;
    if (below < 0) return above;
    return above < steps.length && steps[above] - step < step - steps[below] ? above : below;
  };

  // The point of each shown run that is nearest to the step, and what the tip says of them.
  function hoverAt(chart, x) {
    const wanted = Math.min(Math.max(stepOf(chart, x), view.begin), view.end);
    const near = (view.end - view.begin) / 20;  // a curve that ends farther away says nothing
    const points = [];
    for (const { run, steps, values } of curvesOf(chart, chart.names.curve)) {
      const i = nearest(steps, wanted);
      if (Math.abs(steps[i] - wanted) > near && steps.length > kDotsMost) continue;
      const raw = run.curves[chart.names.behind], k = raw ? nearest(raw.steps, steps[i]) : 0;
      const behind = raw && raw.steps[k] === steps[i] ? ", " + shownValue(chart, raw.values[k]) + " of the step alone" : "";
      points.push({ run, step: steps[i], value: values[i], behind });
    }
    if (points.length === 0) return null;
    const step = points.reduce((a, b) => (Math.abs(b.step - wanted) < Math.abs(a.step - wanted) ? b : a)).step;
    const lines = points.map((p) =>
      p.run.name + ": " + shownValue(chart, p.value) + p.behind + (p.step === step ? "" : " at step " + p.step));
    return { step, points, words: "step " + step + "\n" + lines.join("\n") };
  }

  for (const chart of charts) {
    const { canvas } = chart;
    const leave = () => {
      chart.hover = null;
      page.tell(chart.tip, canvas, { x: 0, y: 0 }, null);
      draw(chart);
    };
    canvas.addEventListener("pointerleave", leave);
    canvas.addEventListener("pointerdown", (event) => {
      const { x } = page.place(canvas, event);
      chart.drag = { from: x, to: x };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const at = page.place(canvas, event);
      if (chart.drag) chart.drag.to = at.x;
      chart.hover = chart.drag ? null : hoverAt(chart, at.x);
      page.tell(chart.tip, canvas, at, chart.hover && chart.hover.words);
      draw(chart);
    });
    canvas.addEventListener("pointerup", () => {
      const { from, to } = chart.drag || { from: 0, to: 0 };
      chart.drag = null;
      if (Math.abs(to - from) < 5) return draw(chart);
      show(stepOf(chart, Math.min(from, to)), stepOf(chart, Math.max(from, to)));
    });
    canvas.addEventListener("pointercancel", () => { chart.drag = null; leave(); });
    canvas.addEventListener("dblclick", () => show(whole.begin, whole.end));
  }

  function show(begin, end) {
    view.begin = Math.max(begin, whole.begin);
    view.end = Math.max(Math.min(end, whole.end), view.begin + 1);
    drawAll();
  }

  // ---- Buttons ----

  const press = (button, is) => button.setAttribute("aria-pressed", String(is));
  const legend = document.getElementById("legend");
  for (const run of runs) {
    const button = document.createElement("button"), box = document.createElement("i");
    button.type = "button";
    box.style.background = run.color;
    button.append(box, run.name);
    press(button, true);
    button.addEventListener("click", () => {
      run.shown = !run.shown;
      press(button, run.shown);
      drawAll();
    });
    legend.append(button);
  }
  document.getElementById("log").addEventListener("click", (event) => {
    log = !log;
    press(event.currentTarget, log);
    drawAll();
  });
  document.getElementById("all").addEventListener("click", () => show(whole.begin, whole.end));
  page.redraw(drawAll);
  drawAll();
  document.body.dataset.drawn = charts.map((chart) => chart.names.points).join(" ");
})();
