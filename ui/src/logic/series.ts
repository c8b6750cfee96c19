/** Figures over time, as a frontend keeps them for the last hour. Pure. */

export interface Series {
  name: string;
  unit: 'bytes' | 'count' | 'rate';
  /** Seconds since 1970, ascending. */
  times: number[];
  values: (number | null)[];
  /** The total that values are a part of, where there is one. */
  limit: number;
}

const TITLES: Record<string, { title: string; unit: Series['unit'] }> = {
  used_ram: { title: 'Memory', unit: 'bytes' },
  used_vram: { title: 'GPU memory', unit: 'bytes' },
  free_disk: { title: 'Disk free', unit: 'bytes' },
  in_flight: { title: 'Requests in flight', unit: 'count' },
  tokens_per_s: { title: 'Tokens per second', unit: 'rate' },
};

/** Those with a value at all: a machine without a GPU has no figure of its memory. Unknown names are shown as
 * they are. */
export function readSeries(body: unknown): Series[] {
  const all = body as { times?: unknown; series?: Record<string, unknown>; limits?: Record<string, (number | null)[]> };
  const times = numbers(all?.times);
  if (!times.length) return [];
  const named = all.series ?? {};
  return Object.entries(named)
    .filter(([, values]) => Array.isArray(values) && values.length === times.length && values.some((value) => value !== null))
    .map(([name, values]) => ({
      name: TITLES[name]?.title ?? name,
      unit: TITLES[name]?.unit ?? 'count',
      times,
      values: values as (number | null)[],
      limit: (all.limits?.[name] ?? []).findLast((value) => value !== null) ?? 0,
    }));
}

function numbers(value: unknown): number[] {
  if (!Array.isArray(value)) return [];
  return value.map((one) => (typeof one === 'string' ? Date.parse(one) / 1000 : Number(one)));
}
