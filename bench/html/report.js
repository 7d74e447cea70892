"use strict";
// Draws the figures in `report`. Colours come from the page's style, and are read again when it turns light or dark.
(function () {
  const colours = ["#3b7dd8", "#d9822b", "#2e9e5b", "#b0479a", "#8a6d3b", "#c62828", "#00838f", "#7e57c2", "#9e9d24"];
  const place = document.getElementById("plots");
  const plots = [];

  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = (v) => v == null ? "" : v >= 1e6 ? (v / 1e6).toPrecision(3) + " M" : v >= 1e4 ? (v / 1e3).toPrecision(3) + " k" : String(+v.toPrecision(3));
  const duration = (us) => us == null ? "" : us >= 1e6 ? +(us / 1e6).toPrecision(3) + " s" : us >= 1e3 ? +(us / 1e3).toPrecision(3) + " ms" : +us.toPrecision(3) + " us";
  const seconds = (t) => t == null ? "" : +t.toFixed(2) + " s";

  function axis(show) {
    return {
      stroke: () => style("--ink"), grid: { stroke: () => style("--faint"), width: 1 }, ticks: { stroke: () => style("--faint"), width: 1 },
      size: 70, values: (u, all) => all.map((v) => v == null ? "" : show(v)),
    };
  }

  // draw puts a plot on the page: x, and lines of {label, values}.
  function draw(title, x, lines, show, options) {
    options = options || {};
    lines = lines.filter((l) => l.values.some((v) => v != null));
    if (x.length === 0 || lines.length === 0) return;
    const figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    caption.textContent = title;
    figure.append(caption);
    place.append(figure);
    const showX = options.showX || seconds;
    const plot = new uPlot({
      width: place.clientWidth, height: 280,
      scales: {
        x: { time: false, distr: options.logX ? 3 : 1 },
        y: options.logY ? { distr: 3 } : { range: (u, min, max) => [0, (max || 1) * 1.08] },
      },
      axes: [Object.assign(axis(showX), { size: 40 }), axis(show)],
      series: [{ label: options.xLabel || "time", value: (u, v) => v == null ? "" : showX(v) }].concat(lines.map((l, i) => ({
        label: l.label, stroke: colours[i % colours.length], width: 1.5, points: { show: x.length < 60, size: 4 }, value: (u, v) => show(v),
      }))),
    }, [x].concat(lines.map((l) => l.values)), figure);
    plots.push(plot);
  }

  const words = (s) => s.replaceAll("_", " ");
  const lanes = report.lanes || [], series = report.series || [], t = series.map((p) => p.t_s);
  const of = (lane, key) => series.map((p) => p.lanes[lane] ? p.lanes[lane][key] : null);
  // A logarithmic scale has no zero: where nothing was counted, there is no point.
  const positive = (values) => values.map((v) => v > 0 ? v : null);
  const broker = (key) => series.map((p) => p.broker ? p.broker[key] : null);

  draw("Throughput, messages/s", t, lanes.filter((l) => l.main).map((l) => ({ label: words(l.lane), values: of(l.lane, "msgs_per_s") })), number);
  for (const l of lanes.filter((l) => l.main || l.lane === "heartbeat")) {
    draw("Latency over time: " + words(l.lane), t, [["p50", "p50_us"], ["p99", "p99_us"], ["max", "max_us"]].map(
      ([label, key]) => ({ label: label, values: positive(of(l.lane, key)) })), duration, { logY: true });
  }
  const rounds = report.rounds || [];
  if (rounds.length > 0) {
    draw("Messages/s by round", rounds[0].rounds_msgs_per_s.map((v, i) => i + 1), rounds.map((p) => ({ label: p.part, values: p.rounds_msgs_per_s })),
      number, { xLabel: "round", showX: (v) => Number.isInteger(v) ? String(v) : "" });
  }
  // The x of a percentile is how many messages there are for each that took longer: 10 at 90 %, 1,000 at 99.9 %.
  const withPercentiles = lanes.filter((l) => l.percentiles && l.percentiles.length > 0);
  if (withPercentiles.length > 0) {
    const points = withPercentiles[0].percentiles.filter((p) => p.p < 100).map((p) => p.p);
    draw("Latency by percentile", points.map((p) => 1 / (1 - p / 100)), withPercentiles.map((l) => ({
      label: words(l.lane), values: positive(l.percentiles.filter((p) => p.p < 100).map((p) => p.us)),
    })), duration, { logX: true, logY: true, xLabel: "percentile", showX: (v) => +(100 - 100 / v).toFixed(4) + " %" });
  }
  draw("Broker: pauses of collections in each sample", t, [{ label: "pauses", values: broker("gc_pause_us") }], duration);
  draw("Broker: processor, cores", t, [{ label: "cores", values: broker("cpu_cores") }], number);
  draw("Broker: memory that is no file's, MB", t, [{ label: "MB", values: broker("rss_anon_bytes").map((v) => v == null ? null : v / 1e6) }], number);
  draw("Broker: log written ahead of the disk, MB", t, [{
    label: "not flushed", values: series.map((p) => p.broker ? Math.max(0, p.broker.log_appended - p.broker.log_synced) / 1e6 : null),
  }], number);

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach((p) => p.redraw(false, true)));
  addEventListener("resize", () => plots.forEach((p) => p.setSize({ width: place.clientWidth, height: 280 })));
})();
