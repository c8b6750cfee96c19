/** The shared worker: one connection for all tabs of a browser. */
import { Connection, type Message } from './connection';

declare const self: SharedWorkerGlobalScope;

const tabs = new Set<MessagePort>();

function tell(message: Message): void {
  for (const tab of tabs) tab.postMessage(message);
}

const connection = new Connection(tell);

self.onconnect = (event) => {
  const tab = event.ports[0]!;
  tabs.add(tab);
  tab.onmessage = ({ data }: MessageEvent<'restart' | 'forget' | 'leave'>) => {
    if (data === 'leave') tabs.delete(tab);
    else connection[data]();
  };
  for (const message of connection.state()) tab.postMessage(message);
};

void connection.run();
