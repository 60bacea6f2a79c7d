// Live refresh, plots, the reader's time zone and a few keys. The pages work without it.
"use strict";
(() => {
  document.documentElement.classList.add("scripted");
  const store = (name, value) => {
    try {
      if (value !== undefined) localStorage.setItem("pgqueue." + name, value);
      return localStorage.getItem("pgqueue." + name);
    } catch { return null; }
  };

  // Times, with their zone: UTC, or the reader's.
  const showTimes = (root) => {
    const local = store("zone") === "local";
    for (const time of root.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      if (isNaN(at)) continue;
      const shown = local
        ? at.toLocaleString(undefined, { dateStyle: "short", timeStyle: "long" })
        : at.toISOString().slice(0, 19).replace("T", " ") + " UTC";
      if (time.title) time.title = shown; else time.textContent = shown;
    }
  };

  // Live: the part #live is asked for again, unless nobody looks, rows are selected, or something is being typed.
  const live = () => document.getElementById("live");
  const isBusy = () => document.hidden || !live() ||
    live().querySelector("input[name=id]:checked") ||
    (live().contains(document.activeElement) && document.activeElement.matches("input:not([type=checkbox], [type=radio]), textarea, select"));
  let timer;
  const schedule = () => {
    clearInterval(timer);
    const chooser = document.getElementById("interval");
    if (!chooser || !live()) return;
    const seconds = Number(chooser.value);
    if (seconds) timer = setInterval(() => { if (!isBusy()) htmx.trigger(live(), "refresh"); }, seconds * 1000);
  };

  // What the script itself draws, and what a reader has opened or chosen, is left as it is.
  Idiomorph.defaults.callbacks.beforeNodeMorphed = (old) => !(old.matches && old.matches(".plotted, .segments"));
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) => !(name === "open" && node.matches("details"));

  // Plots: one canvas each, drawn from /series. The legend has the last values, or those under the cursor.
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const plots = new Map();
  const span = new Map();
  const exact = new Map();
  const begins = new Map();
  const lags = new Map();
  // By the seconds between ticks: the label, and what is added at the first one and where the day changes.
  const day = "\n{YYYY}-{MM}-{DD}";
  const ticks = [
    [86400, "{YYYY}-{MM}-{DD}", null, null, null, null, null, null, 1],
    [60, "{HH}:{mm}", day, null, day, null, null, null, 1],
    [1, "{HH}:{mm}:{ss}", day, null, day, null, null, null, 1],
  ];
  const spell = (s) => s < 1 ? Math.round(s * 1000) + " ms" : s < 10 ? s.toFixed(1) + " s" : s < 100 ? Math.round(s) + " s"
    : s < 6000 ? Math.round(s / 60) + " min" : s < 172800 ? Math.round(s / 3600) + " h" : Math.round(s / 86400) + " d";
  const written = (v, isLog) => v == null ? "–" : isLog ? spell(v) : v >= 100 ? Math.round(v).toLocaleString("en") : v >= 10 ? v.toFixed(1) : String(Math.round(v * 100) / 100);
  const say = (element, plot) => {
    const shown = element.closest(".plotted").querySelectorAll(".legend b"), lines = JSON.parse(element.dataset.lines);
    shown.forEach((each, i) => {
      const values = plot.data[i + 1] || [], at = plot.cursor.idx ?? values.findLastIndex((v) => v != null);
      // A large queue is not counted in each sample.
      const mark = lines[i][0] === "due" && (exact.get(element) || [])[at] === false ? "~" : "";
      each.textContent = mark + written(values[at], element.dataset.log);
    });
  };
  // Before the recorded history begins nothing is known, which is not none: it is shaded, and says so.
  const shade = (element, plot) => {
    const at = begins.get(element);
    if (at == null) return;
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.fillStyle = css("--sunken");
    ctx.fillRect(bbox.left, bbox.top, plot.valToPos(at, "x", true) - bbox.left, bbox.height);
    ctx.restore();
  };
  const begin = (element, plot) => {
    const at = begins.get(element);
    if (at == null) { element.setAttribute("aria-label", element.dataset.title); return; }
    const { ctx, bbox } = plot, ratio = devicePixelRatio, x = plot.valToPos(at, "x", true), isLate = x > bbox.left + bbox.width / 2;
    const shown = new Date((at - (store("zone") === "local" ? new Date().getTimezoneOffset() * 60 : 0)) * 1000).toISOString().replace("T", " ");
    const words = plot.data[0].length ? "recorded since " + shown.slice(plot.scales.x.max - plot.scales.x.min > 86400 ? 0 : 11, 16) : "nothing is recorded yet";
    element.setAttribute("aria-label", element.dataset.title + ", " + words);
    ctx.save();
    ctx.strokeStyle = css("--control");
    ctx.lineWidth = ratio;
    ctx.setLineDash([4 * ratio, 3 * ratio]);
    ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
    ctx.fillStyle = css("--text-3");
    ctx.font = 12 * ratio + "px " + getComputedStyle(document.body).fontFamily;
    ctx.textAlign = isLate ? "right" : "left";
    ctx.fillText(words, x + (isLate ? -6 : 6) * ratio, bbox.top + 12 * ratio);
    ctx.restore();
  };
  // The line of due jobs has the colour of how late they were.
  const byLag = (element, plot, calm) => {
    const [late, veryLate] = element.dataset.late.split(" ").map(Number), { left, width } = plot.bbox, found = lags.get(element) || [];
    const colour = (lag) => lag >= veryLate ? css("--dead") : lag >= late ? css("--failed") : calm;
    if (!width || !found.length) return calm;
    const gradient = plot.ctx.createLinearGradient(left, 0, left + width, 0);
    let before = colour(found[0]);
    gradient.addColorStop(0, before);
    plot.data[0].forEach((at, i) => {
      const now = colour(found[i]), place = Math.min(Math.max((plot.valToPos(at, "x", true) - left) / width, 0), 1);
      if (now === before) return;
      gradient.addColorStop(place, before);
      gradient.addColorStop(place, now);
      before = now;
    });
    return gradient;
  };
  const options = (element, lines) => {
    const font = "12px " + getComputedStyle(document.body).fontFamily, isLog = Boolean(element.dataset.log);
    const axis = { stroke: css("--text-3"), font, grid: { stroke: css("--line"), width: 1 }, ticks: { show: false } };
    const seconds = { splits: () => [0.01, 0.1, 1, 10, 60, 600, 3600, 36000], filter: (plot, splits) => splits.map((v) => v < plot.scales.y.max ? v : null), values: (plot, splits) => splits.map((v) => v == null ? "" : spell(v).replace(/\.0/, "")) };
    return {
      width: element.clientWidth - 8, height: element.clientHeight - 8, padding: [12, 14, 0, 0],
      cursor: { y: false, points: { size: 6 } }, legend: { show: false },
      tzDate: (at) => store("zone") === "local" ? new Date(at * 1000) : uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      axes: [
        { ...axis, values: ticks, size: 38, space: 80, grid: { show: false } },
        { ...axis, size: 60, gap: 6, space: 34, ...(isLog ? seconds : { values: (plot, splits) => splits.map((v) => v.toLocaleString("en")) }) },
      ],
      scales: {
        x: { range: () => span.get(element) },
        y: isLog ? { distr: 3, range: (plot, low, high) => [0.005, Math.max(high || 0, 20) * 2] } : { range: (plot, low, high) => [0, Math.max(high, 1) * 1.12] },
      },
      series: [{}, ...lines.map(([name, colour, dash], i) => ({
        stroke: name === "due" ? (plot) => byLag(element, plot, css(colour.replace("is-", "--"))) : css(colour.replace("is-", "--")), width: 1.6, points: { show: false }, spanGaps: true,
        dash: dash ? dash.split(" ").map(Number) : undefined,
        fill: i === 0 && !isLog ? css(colour.replace("is-", "--")) + "14" : undefined,
      }))],
      hooks: { drawClear: [(plot) => shade(element, plot)], draw: [(plot) => begin(element, plot)], setCursor: [(plot) => say(element, plot)], setData: [(plot) => say(element, plot)] },
    };
  };
  const draw = async (element) => {
    const lines = JSON.parse(element.dataset.lines);
    const url = new URL(element.dataset.src, location.href);
    const range = document.querySelector("input[name=range]:checked");
    if (range) url.searchParams.set("range", range.value);
    let found;
    try {
      const answer = await fetch(url, { headers: { accept: "application/json" } });
      if (!answer.ok) return;
      found = await answer.json();
    } catch { return; }
    // All of the time that was asked for, also where few samples are.
    span.set(element, [found.from, found.to]);
    exact.set(element, found.exact);
    begins.set(element, found.begins);
    lags.set(element, found.oldest);
    const data = [found.t, ...lines.map(([name]) => found[name])];
    const known = plots.get(element);
    if (known) { known.setData(data); return; }
    element.textContent = "";
    const plot = new uPlot(options(element, lines), data, element);
    plots.set(element, plot);
    say(element, plot);
  };
  const drawAll = (anew) => {
    for (const element of document.querySelectorAll(".plot")) {
      if (anew && plots.has(element)) { plots.get(element).destroy(); plots.delete(element); }
      draw(element);
    }
  };

  document.addEventListener("change", (event) => {
    const of = event.target;
    if (of.id === "interval") { store("interval", of.value); schedule(); }
    if (of.id === "zone") { store("zone", of.value); showTimes(document); drawAll(true); }
    if (of.id === "all") for (const box of document.querySelectorAll("input[name=id]")) box.checked = of.checked;
    if (of.name === "range") drawAll(false);
    if (of.matches("input[name=id], #all")) countSelected();
  });
  const countSelected = () => {
    const number = document.querySelectorAll("input[name=id]:checked").length;
    for (const shown of document.querySelectorAll("[data-selected]")) shown.textContent = number ? number + " selected" : "";
  };

  // Keys: / to the filter, g and a letter to a page, ? for the list.
  let isGoing = false;
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") for (const menu of document.querySelectorAll("details.menu[open]")) menu.open = false;
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
    if (isGoing) {
      isGoing = false;
      const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) link.click();
    } else if (event.key === "g") {
      isGoing = true;
      setTimeout(() => { isGoing = false; }, 1500);
    } else if (event.key === "/") {
      const filter = document.querySelector("main input[type=search]") || document.querySelector(".find input");
      if (filter) { event.preventDefault(); filter.focus(); filter.select(); }
    } else if (event.key === "?") {
      const help = document.getElementById("keys");
      if (help) help.open = !help.open;
    }
  });

  document.addEventListener("click", async (event) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    event.preventDefault();
    try { await navigator.clipboard.writeText(button.dataset.copy); button.classList.add("copied"); button.title = "Copied"; } catch { button.title = "Select the text and copy it"; }
  });

  document.addEventListener("DOMContentLoaded", () => {
    for (const name of ["interval", "zone"]) {
      const chooser = document.getElementById(name);
      if (chooser && store(name) !== null && [...chooser.options].some((each) => each.value === store(name))) chooser.value = store(name);
    }
    showTimes(document);
    schedule();
    drawAll(false);
    setInterval(() => { if (!document.hidden) drawAll(false); }, 10000);
    // A bulk action goes on by itself until it is stopped.
    const next = document.getElementById("next-chunk");
    if (next) setTimeout(() => next.requestSubmit(), 150);
  });
  document.addEventListener("htmx:afterSettle", () => { showTimes(document); countSelected(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(true));
  let resizing;
  addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(() => drawAll(true), 200); });
})();
