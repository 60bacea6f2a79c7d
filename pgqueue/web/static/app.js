// Live refresh, plots, the reader's time zone and a few keys. The pages work without it.
"use strict";
(() => {
  const store = (name, value) => {
    try {
      if (value !== undefined) localStorage.setItem("pgqueue." + name, value);
      return localStorage.getItem("pgqueue." + name);
    } catch { return null; }
  };

  // Times: as the database has them, or in the reader's zone.
  const showTimes = (root) => {
    const local = store("zone") === "local";
    for (const time of root.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      if (isNaN(at)) continue;
      const shown = local
        ? at.toLocaleString(undefined, { dateStyle: "short", timeStyle: "medium" })
        : at.toISOString().slice(0, 19).replace("T", " ") + " UTC";
      if (time.title) time.title = shown; else time.textContent = shown;
    }
  };

  // Live: the part #live is asked for again, unless nobody looks, rows are selected, or something is being typed.
  const live = () => document.getElementById("live");
  const isBusy = () => document.hidden || !live() ||
    live().querySelector("input[name=id]:checked, details.menu[open]") ||
    (live().contains(document.activeElement) && document.activeElement.matches("input:not([type=checkbox]), textarea, select"));
  let timer;
  const schedule = () => {
    clearInterval(timer);
    const chooser = document.getElementById("interval");
    if (!chooser || !live()) return;
    const seconds = Number(chooser.value);
    if (seconds) timer = setInterval(() => { if (!isBusy()) htmx.trigger(live(), "refresh"); }, seconds * 1000);
  };

  // Plots: one canvas each, drawn from /series.
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const plots = new Map();
  const span = new Map();
  // By the seconds between ticks: the label, and what is added at the first one and where the day changes.
  const day = "\n{YYYY}-{MM}-{DD}";
  const ticks = [
    [86400, "{YYYY}-{MM}-{DD}", null, null, null, null, null, null, 1],
    [60, "{HH}:{mm}", day, null, day, null, null, null, 1],
    [1, "{HH}:{mm}:{ss}", day, null, day, null, null, null, 1],
  ];
  const options = (element, lines) => {
    const axis = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 } };
    return {
      width: element.clientWidth, height: 180, cursor: { y: false }, legend: { show: true, live: true },
      tzDate: (at) => store("zone") === "local" ? new Date(at * 1000) : uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      axes: [{ ...axis, values: ticks }, { ...axis, size: 56 }],
      scales: { x: { range: () => span.get(element) }, y: { range: (plot, low, high) => [0, Math.max(high, 1) * 1.05] } },
      series: [{ value: "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" }, ...lines.map(([name, colour]) => ({ label: name, stroke: css(colour), width: 1.5, points: { show: false }, spanGaps: true }))],
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
    const data = [found.t, ...lines.map(([name]) => found[name])];
    const known = plots.get(element);
    if (known) { known.setData(data); return; }
    element.textContent = "";
    plots.set(element, new uPlot(options(element, lines), data, element));
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
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
    if (isGoing) {
      isGoing = false;
      const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) link.click();
    } else if (event.key === "g") {
      isGoing = true;
      setTimeout(() => { isGoing = false; }, 1500);
    } else if (event.key === "/") {
      const filter = document.querySelector("input[type=search]");
      if (filter) { event.preventDefault(); filter.focus(); filter.select(); }
    } else if (event.key === "?") {
      const help = document.getElementById("keys");
      if (help) help.open = !help.open;
    }
  });

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    event.preventDefault();
    try { await navigator.clipboard.writeText(button.dataset.copy); button.textContent = "copied"; } catch { button.textContent = "select the text and copy it"; }
  });

  document.addEventListener("DOMContentLoaded", () => {
    for (const name of ["interval", "zone"]) {
      const chooser = document.getElementById(name);
      if (chooser && store(name) !== null && [...chooser.options].some((each) => each.value === store(name))) chooser.value = store(name);
    }
    for (const element of document.querySelectorAll(".needs-script")) element.hidden = false;
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
