/** How many replicas a model is to have, where, and by whose word. Pure. */
import type { Plan, Scheduled, Wanted } from '../api/messages';
import { bytes, duration, rate } from './format';

const ORIGINS: Record<string, string> = { declared: 'set here, which counts more than its configuration', configured: 'by its configuration', default: 'as for every model of which nothing is said' };

export function originOf(told: Wanted): string {
  return ORIGINS[told.origin] ?? told.origin;
}

export function haveLine(told: Scheduled): string {
  return `${told.loaded ?? 0} loaded${told.on_their_way ? `, ${told.on_their_way} on the way` : ''}`;
}

/** For a cell of a table; what it stands for is the frontend's own sentence. */
export function wantedShort(told: Wanted | null | undefined): string {
  if (!told) return '–';
  const [least, most] = [told.min_replicas ?? 0, told.max_replicas ?? 0];
  if (told.every_node) return labelsLine(told.selector) ? `all with ${labelsLine(told.selector)}` : 'all';
  if (least && least === most) return String(least);
  if (least) return most ? `${least}–${most}` : `${least} or more`;
  return most ? `up to ${most}` : 'while used';
}

export function wantedLine(told: Wanted | null | undefined): string {
  if (!told) return '';
  const where = labelsLine(told.selector);
  return `${told.wanted}${where ? `, only on machines with ${where}` : ''} (${originOf(told)})`;
}

export function labelsLine(selector: Record<string, string> | undefined): string {
  return Object.entries(selector ?? {}).map(([key, value]) => `${key}=${value}`).join(', ');
}

/** KEY=VALUE, with commas or spaces between them; null where that is not what was written. */
export function readLabels(text: string): Record<string, string> | null {
  const pairs = text.split(/[\s,]+/).filter(Boolean).map((one) => /^([^=]+)=(.*)$/.exec(one));
  if (pairs.some((one) => !one)) return null;
  return Object.fromEntries(pairs.map((one) => [one![1]!, one![2]!]));
}

const DOING: Record<string, string> = { unload: 'Unload', copy: 'Copy', install: 'Install', load: 'Load' };

/** One step of a plan, as `remuda models plan` says it. */
export function stepLine(step: NonNullable<Plan['steps']>[number]): string {
  const size = step.size_bytes ? bytes(step.size_bytes) : '';
  const what = { unload: step.what, copy: `${size || 'its files'} from ${step.what}`, install: `the backend ${step.what}`, load: size ? `${size} into the backend` : 'it' }[step.action] ?? step.what;
  const time = step.seconds === null || step.seconds === undefined ? 'how long is not known' : `about ${duration(step.seconds)}${step.bytes_per_s ? ` at ${rate(step.bytes_per_s)}` : step.measured_elsewhere ? ', as on other machines' : ', as before on this machine'}`;
  return `${DOING[step.action] ?? step.action} ${what} (${time})`;
}

export function readyLine(plan: Plan): string {
  if (plan.ready_seconds !== null && plan.ready_seconds !== undefined) return `It would answer in ${duration(plan.ready_seconds)}`;
  return plan.known_seconds ? `It would answer in ${duration(plan.known_seconds)} and what is not known of the other steps` : 'How soon it would answer is not known: nothing of it was measured there yet';
}
