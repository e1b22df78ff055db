// What pages cannot do without a script: charts, short addresses, and a key to search with. Everything else works without it.
(function () {
  "use strict";

  const tones = ["--plot-a", "--plot-b", "--plot-c"];
  const charts = new Map();

  function tone(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

  // Every time on these pages is UTC, in the same words.
  function written(at) { return new Date(at * 1000).toISOString().slice(0, 16).replace("T", " "); }
  function short(at) { return at % 86400 === 0 ? written(at).slice(5, 10) : written(at).slice(11); }

  function options(element, names) {
    const axis = { stroke: tone("--soft"), grid: { stroke: tone("--line"), width: 1 }, ticks: { stroke: tone("--line") }, font: "12px Plex, sans-serif" };
    const unit = element.dataset.unit || "";
    const isLog = element.dataset.scale === "log";
    return {
      width: Math.max(element.clientWidth - 24, 200), height: 210, cursor: { y: false }, legend: { live: true },
      scales: { x: { time: true }, y: isLog ? { distr: 3 } : { range: (_, __, high) => [0, Math.max(high * 1.1, 4)] } },
      axes: [{ ...axis, space: 70, values: (_, ticks) => ticks.map(short) }, { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => tick === null ? "" : tick + unit) }],
      series: [{ value: (_, at) => at === null ? "–" : written(at) }].concat(
        names.map((name, index) => ({
          label: name, stroke: tone(tones[index % 3]), width: 2, dash: [[], [6, 3], [2, 3]][index % 3], points: { show: false },
          value: (_, count) => count === null || count === undefined ? "–" : (isLog ? count.toPrecision(3) : count) + unit,
        }))),
    };
  }

  async function draw(element) {
    const answer = await fetch(element.dataset.source, { credentials: "same-origin" });
    if (!answer.ok) { return; }
    const found = await answer.json();
    const names = Object.keys(found.lines);
    const data = [found.at].concat(names.map((name) => found.lines[name]));
    const known = charts.get(element);
    if (known) { known.setData(data); return; }
    element.replaceChildren();
    charts.set(element, new uPlot(options(element, names), data, element));
  }

  function drawAll() { document.querySelectorAll("[data-source]").forEach((element) => { draw(element).catch(() => {}); }); }
  function redraw() { charts.forEach((chart) => chart.destroy()); charts.clear(); drawAll(); }

  let drawing = null;
  document.addEventListener("htmx:sseMessage", () => {
    if (drawing === null) { drawing = setTimeout(() => { drawing = null; drawAll(); }, 2000); }
  });
  // Whoever is told of no changes may show what is no longer so.
  const stale = document.getElementById("stale");
  document.addEventListener("htmx:sseError", () => { stale.hidden = false; });
  document.addEventListener("htmx:sseOpen", () => { stale.hidden = true; });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let resizing = null;
  window.addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(redraw, 200); });
  drawAll();

  // A filter that is left empty says nothing, and need not stand in the address.
  document.addEventListener("htmx:configRequest", (event) => {
    const given = event.detail.parameters;
    for (const name of Object.keys(given)) { if (given[name] === "") { delete given[name]; } }
  });

  document.addEventListener("keydown", (event) => {
    const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const field = document.querySelector("[data-search]");
      if (field) { event.preventDefault(); field.focus(); field.select(); }
    }
    if (event.key === "Escape") {
      const open = event.target.closest ? event.target.closest("details.action[open]") : null;
      if (open) { open.open = false; open.querySelector("summary").focus(); }
    }
  });

  document.addEventListener("change", (event) => {
    const all = event.target.closest ? event.target.closest("[data-check-all]") : null;
    if (all) { document.querySelectorAll(all.dataset.checkAll).forEach((box) => { box.checked = all.checked; }); }
  });
})();
