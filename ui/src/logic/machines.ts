/** Machines: how they stand, in words, and what can be done. Pure. */
import type { Gpu, Node } from '../api/messages';
import type { Tone } from './tones';

export interface Standing {
  word: string;
  tone: Tone;
  /** Why, and what would change it; empty when all is well. */
  reasons: readonly string[];
}

const TONES: Record<string, Tone> = { healthy: 'ok', draining: 'idle', pending: 'warn', unhealthy: 'warn', offline: 'bad' };
const WORDS: Record<string, string> = { pending: 'waits for approval', draining: 'drained' };

export function standing(node: Node): Standing {
  const status = node.status ?? '';
  const facts = node.remuda;
  const left = facts?.reachability === 'departed' && status === 'offline';
  if (left) return { word: 'stopped', tone: 'idle', reasons: reasonsOf(node) };
  if (facts?.joining && status === 'unhealthy') return { word: 'joining', tone: 'busy', reasons: reasonsOf(node) };
  return {
    word: status === 'draining' && facts?.leaving ? 'shutting down' : (WORDS[status] ?? status) || 'unknown',
    tone: TONES[status] ?? 'idle',
    reasons: reasonsOf(node),
  };
}

export interface BulkActions {
  approve: Node[];
  drain: Node[];
  resume: Node[];
  label: Node[];
  install: Node[];
}

/** Of the machines that a person has chosen, those with which each can be done. One that waits for approval takes part in
 * nothing until then, but labels may be ready for it. */
export function bulkActions(chosen: readonly Node[]): BulkActions {
  const member = chosen.filter((node) => node.status !== 'pending');
  return {
    approve: chosen.filter((node) => node.status === 'pending'),
    drain: member.filter((node) => !drained(node)),
    resume: member.filter(drained),
    label: [...chosen],
    install: member,
  };
}

/** By a person: one that shuts down is not resumed. */
function drained(node: Node): boolean {
  return node.remuda ? Boolean(node.remuda.drained) : node.status === 'draining';
}

/** The frontend's words, without the commands for what has a button here. */
export function reasonsOf(node: Node | undefined): readonly string[] {
  return (node?.remuda?.reasons ?? []).map((reason) => reason.replace(/: remuda nodes (approve|resume) .*$/, ''));
}

/** When the figures of a machine were true that is not heard; empty while they are of now. */
export function asOfTime(node: Node): string {
  const unheard = ['offline', 'pending'].includes(node.status ?? '') || ['gone', 'departed'].includes(node.remuda?.reachability ?? '');
  return unheard && (node.total_ram || node.total_disk) ? (node.last_heartbeat ?? '') : '';
}

export function machineName(node: Node): string {
  return node.name || node.id;
}

/** Labels that the frontend makes of what a worker reports. */
export function automatic(key: string): boolean {
  return key.startsWith('node.') || key === 'gpu.vendor' || key === 'gpu.vram';
}

/** Labels that people gave. */
export function ownLabels(node: Node): [string, string][] {
  return Object.entries(node.labels ?? {}).filter(([key]) => !automatic(key));
}

/** Where there are several with memories of their own; else none. */
export function gpusOf(node: Node): readonly Gpu[] {
  const told = node.remuda?.gpus ?? [];
  return told.length > 1 ? told : [];
}

export function usedOfGpu(gpu: Gpu): number {
  return (gpu.total_vram ?? 0) - (gpu.available_vram ?? 0);
}

export function gpuName(gpu: Gpu): string {
  return gpu.name ? `GPU ${gpu.index} · ${gpu.name}` : `GPU ${gpu.index}`;
}

export function hardware(node: Node): string {
  const known = Boolean(node.gpu_vendor || node.total_vram || node.total_ram);
  if (!known) return 'hardware not reported';
  const several = gpusOf(node).length;
  const gpu = several ? `${several} ${node.gpu_vendor} GPUs`.replace('  ', ' ') : node.gpu_vendor ? `${node.gpu_vendor} GPU` : node.total_vram ? 'GPU' : 'no GPU';
  const arch = node.labels?.['node.arch'];
  const os = node.labels?.['node.os'];
  return [gpu, arch, os].filter(Boolean).join(' · ');
}

/** Text and labels of a machine against what is typed: `gpu`, `zone=a`, parts of a name. */
export function matches(node: Node, typed: string): boolean {
  const all = Object.entries(node.labels ?? {}).map(([key, value]) => `${key}=${value}`);
  const text = [machineName(node), node.id, node.address ?? '', ...all].join('\n').toLowerCase();
  return typed
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

export function byName(a: Node, b: Node): number {
  return machineName(a).localeCompare(machineName(b), 'en', { numeric: true });
}
