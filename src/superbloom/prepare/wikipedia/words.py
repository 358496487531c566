"""Words of MediaWiki that a dump does not list: namespaces, interwiki prefixes, redirects, disambiguation templates."""

# Names that every MediaWiki understands, besides those that a dump lists in its siteinfo.
NAMESPACES = {
    name: number
    for number, names in {
        -2: "media",
        -1: "special",
        1: "talk",
        2: "user",
        3: "user talk",
        4: "project|wikipedia|wp|mos",
        5: "project talk|wikipedia talk|wt",
        6: "file|image|bild|datei|fichier|imagen|archivo|imagem|ficheiro|immagine|afbeelding|bestand|"
        "grafika|plik|fil|attēls|soubor|kép|fájl|kuva|tiedosto|slika|resim|dosya|berkas|gambar|файл|"
        "изображение|зображення|слика|εικόνα|αρχείο|صورة|ملف|تصویر|پرونده|קובץ|תמונה|画像|ファイル|그림|파일",
        7: "file talk|image talk",
        8: "mediawiki",
        9: "mediawiki talk",
        10: "template",
        11: "template talk",
        12: "help",
        13: "help talk",
        14: "category",
        15: "category talk",
        100: "portal",
        101: "portal talk",
    }.items()
    for name in names.split("|")
}

# A dump does not list its interwiki prefixes. Short ones are recognised in lower case only, as people write them, so
# that an article such as "C: The Story" is kept. Names of projects are recognised in any case.
INTERWIKI_CODES = frozenset(
    """
    aa ab ace ady af ak als alt am ami an ang ann anp ar arc ary arz as ast atj av avk awa ay az azb
    ba ban bar bat-smg bbc bcl bdr be be-tarask be-x-old bew bg bh bi bjn blk bm bn bo bpy br bs btm bug bxr
    ca cbk-zam cdo ce ceb ch cho chr chy ckb co cr crh cs csb cu cv cy
    da dag de dga din diq dsb dtp dty dv dz ee el eml en eo es et eu ext
    fa fat ff fi fiu-vro fj fo fon fr frp frr fur fy ga gag gan gcr gd gl glk gn gom gor got gpe gsw
    gu guc gur guw gv ha hak haw he hi hif ho hr hsb ht hu hy hyw hz
    ia iba id ie ig igl ii ik ilo inh io is it iu ja jam jbo jv
    ka kaa kab kaj kbd kbp kcg kg kge ki kj kk kl km kn knc ko koi kr krc ks ksh ku kus kv kw ky
    la lad lb lbe lez lfn lg li lij lld lmo ln lo lrc lt ltg lv
    mad mai map-bms mdf mg mh mhr mi min mk ml mn mni mnw mo mos mr mrj ms mt mus mwl my myv mzn
    na nah nan nap nb nds nds-nl ne new ng nia nl nn no nov nqo nr nrm nso nup nv ny
    oc olo om or os pa pag pam pap pcd pcm pdc pfl pi pih pl pms pnb pnt ps pt pwn qu
    rm rmy rn ro roa-rup roa-tara rsk ru rue rup rw
    sa sah sat sc scn sco sd se sg sgs sh shi shn shy si simple sk skr sl sm smn sn so sq sr srn ss st
    stq su sv sw szl szy ta tay tcy tdd te tet tg th ti tig tk tl tly tn to tok tokipona tpi tr trv
    ts tt tum tw ty tyv
    udm ug uk ur uz ve vec vep vi vls vo vro wa war wo wuu xal xh xmf yi yo yue
    za zea zgh zh zh-classical zh-cn zh-hans zh-hant zh-min-nan zh-tw zh-yue zu
    b c d f m n q s v w meta species incubator outreach voy wmf mw phab doi rfc iarchive
    http https ftp irc mailto news gopher telnet
    """.split()  # noqa: SIM905 (one word per line would fill pages)
)
INTERWIKI_NAMES = frozenset(
    """
    wikt wiktionary wikisource wikiquote wikibooks wikinews wikiversity wikivoyage wikispecies wikidata
    wikimedia commons metawikipedia metawikimedia mediazilla bugzilla wikitravel wikicities wikia meatball
    memoryalpha marveldatabase wikiwikiweb foldoc sep11
    """.split()  # noqa: SIM905 (one word per line would fill pages)
)

REDIRECT_WORDS = """
    redirect aanstuur ridrejto تحويل ՎԵՐԱՀՂՈՒՄ istiqamətləndirmə İSTİQAMƏTLƏNDİRMƏ yönləndirmə YÖNLƏNDİRMƏ
    перанакіраваньне перанакіраванне пренасочване виж পুনর্নির্দেশ পুনঃনিৰ্দেশ adkas preusmjeri přesměruj
    ПРѢНАПРАВЛЄНИѤ ail-cyfeirio ailgyfeirio weiterleitung ΑΝΑΚΑΤΕΥΘΥΝΣΗ ανακατεύθυνση alidirektu
    redirección redireccion
    suuna saadaq birzuzendu تغییرمسیر تغییر_مسیر ohjaus uudelleenohjaus redirection athsheoladh הפניה अनुप्रेषित
    पुनर्प्रेषित पुनर्निर्देशन पुनर्निदेशन átirányítás alih tilvísun rinvia rinvio 転送 リダイレクト გადამისამართება
    айдау aýdaw ايداۋ បញ្ជូនបន្ត ប្ដូរទីតាំងទៅ ប្ដូរទីតាំង 넘겨주기 ömleidung ömleide peradresavimas pāradresācija
    пренасочување види തിരിച്ചുവിടുക തിരിച്ചുവിടൽ lencong rindirizza ancaminar wiederleiden deurverwiezing
    doorverwijzing stir omdiriger omdirigering ଲେଉଟାଣି patrz przekieruj tam redirecionamento redirecteaza
    перенаправление перенапр چوريو යළියොමුව presmeruj preusmeritev preusmeri преусмери வழிமாற்று దారిమార్పు
    เปลี่ยนทาง yönlendirme yönlendir YÖNLENDİRME YÖNLENDİR yünältü юнәлтү көжүрүлге перенаправлення رجوع_مکرر
    yo\u02bbnaltirish đổi ווייטערפירן 重定向 重新導向
    """.split()  # noqa: SIM905

# Templates that mark a disambiguation page, in the larger wikis.
DISAMBIGUATIONS = tuple(
    """
    disambig|disambiguation|disamb|dab|dp|aimai|hndis|geodis|numberdis|schooldis|mathdab|letter disambiguation|
    airport disambiguation|human name disambiguation|place name disambiguation|disambigua|desambiguación|desambig|
    desambiguação|desambiguació|begriffsklärung|homonymie|doorverwijspagina|ujednoznacznienie|disambigr|
    неоднозначность|неоднозначність|вишезначна одредница|пояснение|razdvojba|rozcestník|rozlišovacia stránka|egyért|
    täsmennyssivu|förgrening|gren|flertydig|peker|pekerside|aðgreining|dezambiguizare|αποσαφήνιση|anlam ayrımı|
    dəqiqləşdirmə|פירושונים|توضيح|ابهام‌زدایی|ضد ابہام|बहुविकल्पी शब्द|দ্ব্যর্থতা নিরসন|
    பக்கவழி நெறிப்படுத்தல்|అయోమయ నివృత్తి|വിവക്ഷകൾ|แก้ความกำกวม|định hướng|trang định hướng|disambiguasi|
    nyahkekaburan|曖昧さ回避|消歧义|消歧義|消歧義頁|동음이의|მრავალმნიშვნელოვანი|apartigilo|argipen|
    täpsustuslehekülg|nuorodinis straipsnis|nozīmju atdalīšana|discretiva|gwahaniaethu
    """.replace("\n    ", "")
    .strip()
    .split("|")
)
