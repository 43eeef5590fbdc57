// What pages do beyond plain HTML: charts, a word for screen readers, a note when figures grow old.
"use strict";

(() => {
  const charts = new Map();

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function short(number) {
    for (const [size, unit] of [[1e12, " T"], [1e9, " B"], [1e6, " M"], [1e3, " k"]]) {
      if (Math.abs(number) >= size) return Number((number / size).toPrecision(3)) + unit;
    }
    return String(Math.round(number * 100) / 100);
  }

  function values(holder) {
    const read = JSON.parse(holder.dataset.chart);
    // Once more at the end, so that the last step is as wide as the others.
    const last = read.x.length - 1;
    return [[...read.x, read.x[last] + read.width], [...read.tokens, read.tokens[last]]];
  }

  // In UTC, as all times of the pages; with the day, or the seconds, where they tell a difference.
  function moments(chart, ticks) {
    const { min, max } = chart.scales.x;
    const from = max - min > 86400 ? 5 : 11;
    const to = max - min > 600 ? 16 : 19;
    return ticks.map((tick) => new Date(tick * 1000).toISOString().slice(from, to).replace("T", " "));
  }

  function draw(holder) {
    const [faint, line, fill] = ["--faint", "--line", "--fill"].map(colour);
    const axis = { stroke: faint, grid: { stroke: line, width: 1 }, ticks: { show: false } };
    holder.replaceChildren();
    const chart = new uPlot(
      {
        width: holder.clientWidth,
        height: holder.clientHeight - 26, // the legend, which tells what the pointer is at
        cursor: { drag: { x: false, y: false } },
        scales: { x: { time: true }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.05 : 1] } },
        axes: [
          { ...axis, size: 30, space: 90, values: moments },
          { ...axis, size: 56, values: (_, ticks) => ticks.map(short) },
        ],
        series: [
          { label: "From", value: (chart, at) => (at == null ? "–" : moments(chart, [at])[0]) },
          { label: "Tokens per second", value: (_, found) => (found == null ? "–" : short(found)), stroke: fill, width: 1.5, fill: fill + "29", paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } },
        ],
      },
      values(holder),
      holder,
    );
    charts.set(holder, chart);
  }

  function showCharts() {
    if (typeof uPlot === "undefined") return;
    for (const [holder, chart] of charts) {
      if (!holder.isConnected) {
        chart.destroy();
        charts.delete(holder);
      }
    }
    for (const holder of document.querySelectorAll("[data-chart]")) {
      const chart = charts.get(holder);
      if (chart && holder.contains(chart.root)) chart.setData(values(holder));
      else draw(holder);
    }
  }

  function redrawCharts() {
    for (const holder of [...charts.keys()]) {
      charts.get(holder).destroy();
      draw(holder);
    }
  }

  // Said at most at each tenth, whatever changes between.
  function announce() {
    const text = document.querySelector("[data-announce]")?.dataset.announce ?? "";
    const announcer = document.getElementById("announcer");
    if (announcer && announcer.textContent !== text) announcer.textContent = text;
  }

  function showStale(isStale) {
    const note = document.getElementById("stale");
    if (note) note.hidden = !isStale;
  }

  document.addEventListener("htmx:before:request", (event) => {
    if (document.hidden) event.preventDefault();
  });
  document.addEventListener("htmx:after:request", (event) => {
    showStale((event.detail?.ctx?.response?.status ?? 200) >= 400);
  });
  document.addEventListener("htmx:error", () => showStale(true));
  document.addEventListener("htmx:after:swap", () => {
    showCharts();
    announce();
  });

  for (const button of document.querySelectorAll("[data-copies]")) {
    if (!navigator.clipboard) continue;
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(document.getElementById(button.dataset.copies).textContent);
      button.textContent = "Copied";
    });
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawCharts);
  let resizing;
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(redrawCharts, 150);
  });
  showCharts();
})();
