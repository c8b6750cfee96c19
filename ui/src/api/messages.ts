/** The API's messages under the names that pages use. */
import type { components } from './schema';

type Messages = components['schemas'];

export type Node = Messages['NodeView'];
export type Gpu = Messages['GpuFigures'];
export type Model = Messages['ModelItem'] & { id: string };
export type Replica = Messages['ReplicaView'] & { id: string };
export type Operation = Messages['OpView'];
export type Step = Messages['StepView'];
export type OperationRequest = Omit<Messages['OpRequest'], 'roll_out'> & { roll_out?: Messages['OpRequest']['roll_out'] };
export type OperationPlan = Messages['OpPlan'];
export type PlannedFetch = Messages['PlannedFetch'];
export type Backend = Messages['BackendItem'];
export type BackendsPage = Messages['BackendsPage'];
export type BackendFits = Messages['BackendFits'];
export type Upgrades = Messages['UpgradesReply'];
export type GalleryModel = Messages['GalleryModelView'];
export type GalleryModels = Messages['GalleryModels'];
export type RemovalPlan = Messages['ModelRemovalPlan'];
export type ModelText = Messages['ModelText'];
export type ModelAdded = Messages['ModelAdded'];
export type InstalledBackend = Messages['InstalledBackend'];
export type NodeDisk = Messages['NodeDiskView'];
export type FreedDisk = Messages['FreedDisk'];
export type HistoryItem = Messages['HistoryItem'];
export type LogLine = Messages['LogLine'];
export type Key = Messages['KeyView'];
export type LiveKey = Messages['KeyEntity'];
export type LiveServer = Messages['ServerEntity'];
export type JoinLines = Messages['JoinLines'];

/** Something that needs a person, and the request that would solve it. */
export type Attention = Messages['AttentionItem'];

export interface Session {
  authenticated: boolean;
  scope?: string;
  name?: string;
  loopback?: boolean;
  version?: string;
  frontend?: string;
}
export type Wanted = Messages['WantedReplicas'];
export type Scheduled = Messages['ModelScheduled'];
export type Plan = Messages['ModelPlan'];
export type Explanation = Messages['RequestExplanation'];
export type Usage = Messages['UsageView'];
export type Server = Messages['ServerView'];
export type ServerList = Messages['ServerViews'];
export type FoundServers = Messages['FoundServers'];
