"""What the pages say, in English and Chinese. The English text is the key.

What records say (reasons, evidence) stays as it was written.
"""

from __future__ import annotations

from collections.abc import Callable

LANGUAGES = {"en": "English", "zh": "中文"}
_ZH = """
ECS GPU Recovery=ECS GPU 自愈
Skip to content=跳到正文
Overview=总览
Jobs=任务
New job=新建任务
Nodes=节点
Alerts and audit=告警与审计
Sign in=登录
Sign out=退出
Name=名称
Password=密码
The name or the password is wrong.=用户名或密码错误。
Too many tries. Wait a few minutes.=尝试次数过多，请几分钟后再试。
Light or dark=浅色或深色
Language=语言
viewer=只读
operator=操作员
Live=实时
Reconnecting…=正在重新连接…
Fleet=节点集群
What the system is doing now=系统正在做什么
Nothing: no job is running.=空闲：没有运行中的任务。
Messages to people=需要人处理的消息
Nobody is needed.=目前不需要人工处理。
All messages=全部消息
Recent jobs=最近的任务
All jobs=全部任务
No jobs yet.=还没有任务。
No nodes yet.=还没有节点。
free=空闲
in use=使用中
out of use=停用
nodes=个节点
jobs running=个任务运行中
Job=任务
State=状态
Attempt=尝试
Submitted=提交时间
Last change=最近变化
Node=节点
Rank=序号
Task=进程
Exit=退出
Verdict=检查结论
Why=原因
Evidence=依据
Time=时间
Who=谁
Action=操作
Subject=对象
Outcome=结果
since=自
More=更多
Filter by state=按状态筛选
all=全部
Apply=应用
State of the job=任务状态
Where the time went=时间去向
Ranks and nodes=各节点情况
What happened and why=发生了什么、为什么
Logs=日志
Progress=训练进度
Details=详细信息
Effective training time=有效训练时间
of the time since submission=（占提交以来的时间）
Steps=步数
Loss=损失
Trained twice=重复训练的步数
Resumed at step=恢复于第几步
Total time=总时间
Retries left=剩余重试次数
Command=命令
Checkpoints=检查点目录
Variables=环境变量
Submitted by=提交者
Repeats job=重跑自任务
Stop the job=停止任务
Run again=重新运行
Reason=理由
Stop it=确认停止
Keep running=继续运行
Every rank is stopped. The job ends for good.=所有节点上的进程都会停止，任务将结束。
from the last checkpoint, as a new job=作为新任务，从最近的检查点开始
Follow=跟随
Search in this log=在此日志中搜索
Search=搜索
Download=下载
Earlier=更早的内容
Close the search=关闭搜索
Nothing was written yet.=还没有输出。
No progress was reported yet.=还没有上报进度。
Lines found=找到的行
Phase=阶段
Duration=时长
Check before the start=启动前检查
waiting=等待中
under check=检查中
passed=通过
GPUs=GPU 数
Address=地址
Held by job=被任务占用
Drained by=停用人
Last verdict=最近结论
Findings=发现
Last check=最近一次检查
No report yet.=还没有检查报告。
History=历史
Actions=操作
Drain=停用
Release=恢复使用
Reboot=重启
Check=检查
Keeps new jobs off this node.=新任务不再使用此节点。
Gives the node back into use.=让节点重新可用。
Restarts the node. Refused while a job holds it.=重启节点。被任务占用时会被拒绝。
Examines the GPUs. Refused while a job holds it.=检查 GPU。被任务占用时会被拒绝。
A reason is kept with your name.=理由会和您的名字一起记录。
How deep=检查深度
Do it=执行
Jobs that ran here=在此运行过的任务
What people did here=人工操作记录
Orders still pending=尚未完成的指令
No order is pending.=没有待执行的指令。
Send again=重新发送
Tries=次数
Due=到期
Error=错误
What people did=人工操作
Nothing was done yet.=还没有操作记录。
What the system did=系统操作
Happened=发生了什么
Done=已处理
Next=接下来
A short name=简短名称
letters, digits, dot, dash=字母、数字、点、横线
Where=在哪里运行
Any free nodes=任意空闲节点
These nodes=指定节点
How many=数量
What=运行什么
A command=命令
A script=脚本
Start from a template=使用模板
The program and its arguments, as in a shell=程序及其参数，与命令行写法相同
Python, or a shell script that begins with #!=Python 脚本，或以 #! 开头的 Shell 脚本
Upload a file=上传文件
Arguments=参数
One NAME=value on each line=每行一个变量：名称、等号、值
Working folder=工作目录
Checkpoint folder=检查点目录
made for the job if empty=留空则自动创建
Rendezvous port=通信端口
a free one if empty=留空则自动选择
GPUs of each node=每个节点的 GPU 数
all if empty=留空则使用全部
Memory limit (MiB)=内存上限（MiB）
none if empty=留空则不限制
Automatic restarts=自动重启次数
Check the nodes first=先检查节点
Task definition (AWS)=任务定义（AWS）
Container image (AWS)=容器镜像（AWS）
Container (AWS)=容器名称（AWS）
More settings=更多设置
Preview=预览
Submit=提交
Please look at the fields below.=请检查下面的字段。
Runs on=运行于
Would be refused now=目前会被拒绝
Variables of rank 0=节点 0 的环境变量
Task definition=任务定义
none: skip the check=none：不检查
The control plane does not answer=控制平面没有响应
What you see may be old. The console keeps trying.=您看到的可能是旧数据，控制台会继续尝试。
This page does not exist=没有这个页面
It was refused=请求被拒绝
Something went wrong=出错了
Back=返回
Running=运行中
Checking nodes=检查节点
Waiting for nodes=等待节点
Restarting=正在重启
Complete=已完成
Failed=失败
Stopped=已停止
Available=可用
Not heard from=失联
Assigned=已分配
Stopping=停止中
Under check=检查中
Rebooting=重启中
running=运行
stopping and checking=停止并检查
rebooting=重启节点
restarting=重新启动
checking before the start=启动前检查
Legend=图例
Built-in example (no GPU needed)=内置示例（不需要 GPU）
torchrun (DDP, FSDP)=torchrun（DDP、FSDP）
Hugging Face Accelerate=Hugging Face Accelerate
DeepSpeed=DeepSpeed
Loss by training step, one line per attempt=各次尝试的损失曲线
drained=已停用
Newest first=最新在前
Older=更早
not signed in=未登录
Possible next=接下来可能
Terminated=已终止
at most=最多
"""
ZH: dict[str, str] = {}
for _line in _ZH.strip().splitlines():
    _english, _, _chinese = _line.rpartition("=")
    ZH[_english] = _chinese

JOB_LABELS = {
    "IN_PROGRESS": "Running",
    "PENDING_HEALTHCHECK": "Checking nodes",
    "PENDING_RESTART": "Waiting for nodes",
    "RESTARTING": "Restarting",
    "COMPLETE": "Complete",
    "FAILED": "Failed",
    "USER_STOPPED": "Stopped",
    "TERMINATED": "Terminated",  # of a task
}
NODE_LABELS = {
    "AVAILABLE": "Available",
    "UNKNOWN": "Not heard from",
    "ASSIGNED": "Assigned",
    "IN_PROGRESS": "Running",
    "PENDING": "Stopping",
    "PENDING_HEALTHCHECK": "Under check",
    "REBOOTING": "Rebooting",
    "FAILED": "Failed",
}


def translator(language: str) -> Callable[[str], str]:
    if language == "zh":
        return lambda text: ZH.get(text, text)
    return lambda text: text


def choose(cookie: str, accept: str) -> str:
    """The person's own choice, or what their browser asks for."""
    if cookie in LANGUAGES:
        return cookie
    wishes: list[tuple[float, str]] = []
    for part in accept.split(",")[:20]:
        name, _, quality = part.strip().partition(";q=")
        try:
            weight = float(quality) if quality else 1.0
        except ValueError:
            weight = 0.0
        wishes.append((weight, name.lower()[:2]))
    for _, name in sorted(wishes, key=lambda wish: -wish[0]):
        if name in LANGUAGES:
            return name
    return "en"
